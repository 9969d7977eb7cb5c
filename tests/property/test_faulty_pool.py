"""Any sequence of calls on a device that fails now and then, in any way."""

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from madl.backends.protocol import Capability
from madl.errors import BackendCallError, OutOfMemoryError
from madl.testing import Failure, Fault
from tests.faulty import FaultyCalls
from tests.property.pool_model import LARGE, MIB, SETTINGS, SMALL, TAGS, PoolModel
from tests.property.test_streams import MOVED_PAGES, PAGES, SEGMENTS, Program
from tests.sweeps import IS_LONG
from tests.tally import tally

SIZES = st.sampled_from(SMALL + LARGE) | st.integers(0, 3 * MIB)
CHOICES = st.integers(0, 1 << 16)
ALIGNMENTS = st.integers(0, 20).map(lambda power: 1 << power)
FAULTS = st.builds(Fault, st.integers(1, 5), st.sampled_from(Failure), st.booleans())


class FaultyPool(RuleBasedStateMachine):
    """Whatever fails, nothing is lost: the pool adds up, and so does its device."""

    @initialize(setting=st.sampled_from(sorted(SETTINGS)))
    def start(self, setting: str) -> None:
        self.model = PoolModel(SETTINGS[setting])
        self.calls = FaultyCalls(self.model.backend)

    def attempt(self, action: Callable[[], None]) -> None:
        held = list(self.model.live)
        tally.operations += 1
        try:
            action()
        except (BackendCallError, KeyboardInterrupt):
            assert self.calls.struck
            self.calls.disarm()  # what was interrupted is put right by the next call
            assert self.model.live == held
            self.model.is_trimming = False

    @rule(fault=FAULTS)
    def fail_soon(self, fault: Fault) -> None:
        self.calls.arm(fault)

    @rule()
    def recover(self) -> None:
        self.calls.disarm()

    @rule(nbytes=SIZES, tag=st.sampled_from(TAGS))
    def allocate(self, nbytes: int, tag: str | None) -> None:
        self.attempt(lambda: self.model.allocate(nbytes, tag=tag))

    @rule(nbytes=SIZES, alignment=ALIGNMENTS)
    def allocate_aligned(self, nbytes: int, alignment: int) -> None:
        self.attempt(lambda: self.model.allocate(nbytes, alignment=alignment))

    @rule(choice=CHOICES)
    def free(self, choice: int) -> None:
        self.attempt(lambda: self.model.free(choice))

    @rule(choice=CHOICES)
    def drop(self, choice: int) -> None:
        self.attempt(lambda: self.model.drop(choice))

    @rule(keep=st.sampled_from((0, 16384, MIB)))
    def trim(self, keep: int) -> None:
        self.attempt(lambda: self.model.trim(keep))

    @invariant()
    def adds_up(self) -> None:
        self.model.check()

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.calls.disarm()
            self.model.close()
            assert self.calls.held == []


TestFaultyPool = FaultyPool.TestCase
TestFaultyPool.settings = settings(
    max_examples=settings().max_examples // 3, stateful_step_count=40
)


@pytest.mark.parametrize("seed", range(100 if IS_LONG else 3))
@pytest.mark.parametrize(
    "capabilities", [SEGMENTS, PAGES, MOVED_PAGES], ids=["segments", "pages", "moved"]
)
def test_streams_read_what_was_written_though_calls_fail(
    seed: int, capabilities: Capability
) -> None:
    program = Program(seed, capabilities)
    calls = FaultyCalls(program.backend)
    draw = random.Random(-seed)
    for _ in range(1000):
        if draw.random() < 0.1:
            failure = draw.choice(list(Failure))
            calls.arm(Fault(draw.randint(1, 5), failure, draw.random() < 0.2))
        elif draw.random() < 0.2:
            calls.disarm()
        tally.operations += 1
        try:
            program.step()
        except (BackendCallError, OutOfMemoryError, KeyboardInterrupt):
            assert calls.struck
            calls.disarm()
    calls.disarm()

    program.finish()
    program.pool.check()
    wrong = [value for found, value in program.reads if found.strip(bytes([value]))]
    assert len(program.reads) > 50
    assert not wrong
    del program.live
    program.pool.close()
    assert calls.held == []
