"""A whole pool under everything at once, as a machine that explains and as a walk."""

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from madl.testing import Failure
from tests.property.whole_model import (
    DEVICES,
    HIGHEST_VALUE,
    KIB,
    Whole,
    WholeModel,
)

SIZES = (0, 1, 64, 700, 5000, 30_000, 90_000)
TAGS = (None, None, "bounded", "bounded/part", "other")
ZEROS = (False, True, "free")
CHOICES = st.integers(0, 1 << 16)
STREAMS = st.integers(0, 2)
WHOLES = st.builds(
    Whole,
    device=st.sampled_from(sorted(DEVICES)),
    limit=st.sampled_from((None, 512 * KIB, 150 * KIB)),
    zero=st.sampled_from(ZEROS),
    recycle=st.booleans(),
    fit=st.sampled_from(("first", "best")),
)


class WholePool(RuleBasedStateMachine):
    """Any sequence of calls, on any device, whatever of it fails."""

    @initialize(whole=WHOLES)
    def start(self, whole: Whole) -> None:
        self.model = WholeModel(whole)

    @rule(
        nbytes=st.sampled_from(SIZES) | st.integers(0, 200_000),
        stream=STREAMS,
        tag=st.sampled_from(TAGS),
        value=st.integers(1, HIGHEST_VALUE),
    )
    def allocate(self, nbytes: int, stream: int, tag: str | None, value: int) -> None:
        self.model.allocate(nbytes, stream=stream, tag=tag, value=value)

    @rule(choice=CHOICES)
    def free(self, choice: int) -> None:
        self.model.free(choice)

    @rule(choice=CHOICES)
    def drop(self, choice: int) -> None:
        self.model.drop(choice)

    @rule(choice=CHOICES, nbytes=st.sampled_from(SIZES))
    def resize(self, choice: int, nbytes: int) -> None:
        self.model.resize(choice, nbytes)

    @rule(choice=CHOICES, stream=STREAMS)
    def read(self, choice: int, stream: int) -> None:
        self.model.read(choice, stream)

    @rule(stream=STREAMS, count=st.integers(1, 8))
    def pump(self, stream: int, count: int) -> None:
        self.model.pump(stream, count)

    @rule(keep=st.sampled_from((0, 16384, 200_000)))
    def trim(self, keep: int) -> None:
        self.model.trim(keep)

    @rule(stream=STREAMS)
    def forget(self, stream: int) -> None:
        self.model.forget(stream)

    @rule(call=st.integers(1, 6), failure=st.sampled_from(Failure))
    def fail(self, call: int, failure: Failure) -> None:
        self.model.fail(call, failure)

    @invariant()
    def adds_up(self) -> None:
        self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.finish()


TestWholePool = WholePool.TestCase
TestWholePool.settings = settings(
    max_examples=settings().max_examples // 3, stateful_step_count=40
)


def step(model: WholeModel, draw: random.Random) -> None:
    """Take a step of a walk."""
    choice, stream = draw.randrange(1 << 16), draw.randrange(3)
    value = draw.randrange(1, HIGHEST_VALUE + 1)
    tag, failure = draw.choice(TAGS), draw.choice(list(Failure))
    steps: dict[Callable[[], None], int] = {
        lambda: model.allocate(
            draw.choice(SIZES), stream=stream, tag=tag, value=value
        ): 14,
        lambda: model.free(choice): 11,
        lambda: model.drop(choice): 2,
        lambda: model.resize(choice, draw.choice(SIZES)): 2,
        lambda: model.read(choice, stream): 6,
        lambda: model.pump(stream, draw.randrange(1, 8)): 5,
        lambda: model.trim(draw.choice((0, 16384, 200_000))): 1,
        lambda: model.forget(stream): 1,
        lambda: model.fail(draw.randrange(1, 7), failure): 1,
    }
    draw.choices([*steps], [*steps.values()])[0]()


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_walk_through_everything(device: str, zero: bool | str) -> None:
    draw = random.Random(f"{device} {zero}")
    model = WholeModel(Whole(device=device, zero=zero))  # type: ignore[arg-type]  # of ZEROS

    for _ in range(600):
        step(model, draw)
        if draw.random() < 0.2:
            model.check()

    model.check()
    model.finish()
