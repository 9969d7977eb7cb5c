"""An arena's blocks and pages, held to a reference that looks at every byte."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from madl.core.first_fit import FirstFit
from madl.errors import UnknownBlockError
from tests.property.reference import ReferenceArena

PAGE_NBYTES = 16
PAGES = 32
ARENA_NBYTES = PAGES * PAGE_NBYTES


class BothArenas:
    """The real arena and the reference; each call goes to both."""

    def __init__(self, look_ahead: int) -> None:
        self.look_ahead = look_ahead
        self.real = FirstFit(ARENA_NBYTES, PAGE_NBYTES, look_ahead)
        self.reference = ReferenceArena(ARENA_NBYTES, PAGE_NBYTES)
        self.live: list[tuple[int, int]] = []

    def allocate(self, nbytes: int) -> None:
        """Place a block; commit the pages it lacks first."""
        expected = self.reference.smallest_of_first(nbytes, self.look_ahead)
        missing = [] if expected < 0 else self.reference.missing(expected, nbytes)

        offset = self.real.allocate(nbytes)

        assert offset == (-1 if expected < 0 else -2 if missing else expected)
        if offset == -2:
            self.take(expected, nbytes)
        elif offset >= 0:
            self.note_live(offset, nbytes)

    def allocate_aligned(self, nbytes: int, alignment: int) -> None:
        """Place a block at a multiple of ``alignment``."""
        offset = self.real.find(nbytes, alignment)

        assert offset == self.reference.first_aligned(nbytes, alignment)
        if offset >= 0:
            self.take(offset, nbytes)

    def take(self, offset: int, nbytes: int) -> None:
        """Commit the pages that a range lacks, and take it."""
        missing = self.reference.missing(offset, nbytes)
        runs = self.real.pages.missing_runs(offset, nbytes)
        assert [page for run in runs for page in range(*run)] == missing
        assert self.real.pages.missing(offset, nbytes) == len(missing)
        for first, stop in runs:
            self.real.pages.commit(first, stop)
        self.reference.committed.update(missing)
        self.real.take(offset, nbytes)
        self.note_live(offset, nbytes)

    def note_live(self, offset: int, nbytes: int) -> None:
        """Let the reference know of a block."""
        self.reference.take(offset, nbytes)
        self.live.append((offset, nbytes))

    def free(self, choice: int) -> None:
        """Free one of the live blocks, if there is any."""
        if self.live:
            offset, nbytes = self.live.pop(choice % len(self.live))
            self.real.free(offset, nbytes)
            self.reference.give(offset, nbytes)

    def free_what_is_free(self, offset: int) -> None:
        """Try to free a range of which a part is free already."""
        nbytes = min(PAGE_NBYTES, ARENA_NBYTES - offset)
        if not self.reference.is_live(offset, nbytes):
            with pytest.raises(UnknownBlockError):
                self.real.free(offset, nbytes)

    def decommit(self, most: int, keep: tuple[int, int]) -> None:
        """Take the highest run of idle pages away, but none of those to keep."""
        kept = range(*keep)
        idle = [page for page in self.reference.idle() if page not in kept]
        expected = idle[-1:]
        while expected and len(expected) < most and expected[0] - 1 in idle:
            expected.insert(0, expected[0] - 1)

        first, stop = self.real.pages.last_idle_run(most, *keep)

        assert list(range(first, stop)) == expected
        if expected:
            self.real.pages.decommit(first, stop)
            self.reference.committed.difference_update(expected)

    def compare(self) -> None:
        """Compare everything that can be asked without a change."""
        free_nbytes = self.reference.live.count(0)
        idle = self.reference.idle()
        pages = self.real.pages

        assert self.real.free_blocks() == self.reference.gaps()
        assert self.real.free_nbytes == free_nbytes
        assert self.real.is_empty() == (free_nbytes == ARENA_NBYTES)
        assert (pages.committed, pages.idle) == (
            len(self.reference.committed),
            len(idle),
        )
        half = ARENA_NBYTES // 2
        assert pages.idle_under(half, half) == len([p for p in idle if p >= PAGES // 2])


class FirstFitAgainstReference(RuleBasedStateMachine):
    """Any sequence of calls places blocks exactly where the naive model does."""

    @initialize(look_ahead=st.sampled_from([1, 3, 1 << 30]))
    def start(self, look_ahead: int) -> None:
        self.both = BothArenas(look_ahead)

    @rule(nbytes=st.integers(1, ARENA_NBYTES // 4))
    def allocate(self, nbytes: int) -> None:
        self.both.allocate(nbytes)

    @rule(
        nbytes=st.integers(1, ARENA_NBYTES // 8),
        alignment=st.sampled_from([1, 2, 8, 16, 64]),
    )
    def allocate_aligned(self, nbytes: int, alignment: int) -> None:
        self.both.allocate_aligned(nbytes, alignment)

    @rule(choice=st.integers(0, 1 << 16))
    def free(self, choice: int) -> None:
        self.both.free(choice)

    @rule(offset=st.integers(0, ARENA_NBYTES - 1))
    def free_what_is_free(self, offset: int) -> None:
        self.both.free_what_is_free(offset)

    @rule(
        most=st.integers(1, PAGES),
        first=st.integers(0, PAGES),
        count=st.integers(1, PAGES),
    )
    def decommit(self, most: int, first: int, count: int) -> None:
        self.both.decommit(most, (first, first + count))

    @invariant()
    def same_blocks_and_pages(self) -> None:
        self.both.compare()

    @invariant()
    def structure_is_sound(self) -> None:
        self.both.real.check()


TestFirstFit = FirstFitAgainstReference.TestCase
TestFirstFit.settings = settings(
    max_examples=settings().max_examples // 2, stateful_step_count=50
)


@pytest.mark.parametrize("look_ahead", [1, 4, 1 << 30])
@pytest.mark.parametrize("seed", range(2))
def test_a_walk_of_thousands_of_steps(seed: int, look_ahead: int) -> None:
    draw = random.Random(seed)
    both = BothArenas(look_ahead)

    for _ in range(3000):
        match draw.randrange(10):
            case 0 | 1 | 2 | 3:
                both.allocate(draw.randrange(1, 48))
            case 4:
                both.allocate_aligned(draw.randrange(1, 32), 1 << draw.randrange(6))
            case 5:
                first = draw.randrange(PAGES + 1)
                keep = (first, first + draw.randrange(1, 6))
                both.decommit(draw.randrange(1, 6), keep)
            case 6:
                both.free_what_is_free(draw.randrange(ARENA_NBYTES))
            case _:
                both.free(draw.randrange(1 << 16))
        both.compare()
        both.real.check()
