"""A whole pool, held to the plainest account of it."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.property.pool_model import (
    LARGE,
    MIB,
    SETTINGS,
    SMALL,
    TAGS,
    PoolModel,
    Setting,
    random_step,
)

SIZES = st.sampled_from(SMALL + LARGE) | st.integers(0, 3 * MIB)
CHOICES = st.integers(0, 1 << 16)
ALIGNMENTS = st.integers(0, 20).map(lambda power: 1 << power)


class PoolAgainstModel(RuleBasedStateMachine):
    """Any sequence of calls leaves a pool that adds up, and a device used properly."""

    @initialize(setting=st.sampled_from(sorted(SETTINGS)))
    def start(self, setting: str) -> None:
        self.model = PoolModel(SETTINGS[setting])

    @rule(nbytes=SIZES, tag=st.sampled_from(TAGS))
    def allocate(self, nbytes: int, tag: str | None) -> None:
        self.model.allocate(nbytes, tag=tag)

    @rule(nbytes=SIZES, alignment=ALIGNMENTS)
    def allocate_aligned(self, nbytes: int, alignment: int) -> None:
        self.model.allocate(nbytes, alignment=alignment)

    @rule(choice=CHOICES)
    def free(self, choice: int) -> None:
        self.model.free(choice)

    @rule(choice=CHOICES)
    def drop(self, choice: int) -> None:
        self.model.drop(choice)

    @rule(keep=st.sampled_from((0, 16384, MIB)))
    def trim(self, keep: int) -> None:
        self.model.trim(keep)

    @invariant()
    def adds_up(self) -> None:
        self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.close()


TestPool = PoolAgainstModel.TestCase
TestPool.settings = settings(
    max_examples=settings().max_examples // 3, stateful_step_count=30
)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_walk_of_thousands_of_steps(setting: Setting) -> None:
    draw = random.Random(11)
    model = PoolModel(setting)

    for step in range(3000):
        random_step(model, draw)
        if step % 10 == 0:
            model.check()

    model.close()
