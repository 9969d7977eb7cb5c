"""The index of free blocks, held to a reference that keeps none."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from madl.core.skiplist import SkipList
from madl.errors import UnknownBlockError
from tests.property.reference import ReferenceArena

ARENA_NBYTES = 256  # small, so that it fills up and every path is taken
SIZES = st.integers(1, ARENA_NBYTES)
OFFSETS = st.integers(0, ARENA_NBYTES - 1)
MOST = st.sampled_from([1, 2, 3, 1000])
ALIGNMENTS = st.sampled_from([1, 2, 4, 16, 64])


class BothArenas:
    """A skip list and the reference; each call goes to both, and both must agree."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.real = SkipList()
        self.reference = ReferenceArena(nbytes)
        self.real.put(0, nbytes)

    def take_first(self, nbytes: int) -> None:
        """Cut from the lowest block that fits."""
        offset = self.real.find(nbytes)

        assert offset == self.reference.smallest_of_first(nbytes, 1)
        if offset >= 0:
            self.real.carve_found(nbytes)
            self.reference.take(offset, nbytes)

    def take_best(self, nbytes: int, most: int) -> None:
        """Cut from the smallest of the first ``most`` blocks that fit."""
        offset = self.real.find_best(nbytes, most)

        assert offset == self.reference.smallest_of_first(nbytes, most)
        if offset >= 0:
            self.real.carve_best(offset, nbytes)
            self.reference.take(offset, nbytes)

    def take_aligned(self, nbytes: int, alignment: int) -> None:
        """Cut from wherever an aligned block fits first."""
        offset = self.real.find_aligned(nbytes, alignment)

        assert offset == self.reference.first_aligned(nbytes, alignment)
        if offset >= 0:
            self.real.carve(offset, nbytes)
            self.reference.take(offset, nbytes)

    def take_at(self, offset: int, nbytes: int) -> None:
        """Cut a range out; one that is not wholly free is refused."""
        if self.reference.is_free(offset, nbytes):
            self.real.carve(offset, nbytes)
            self.reference.take(offset, nbytes)
        else:
            with pytest.raises(UnknownBlockError):
                self.real.carve(offset, nbytes)

    def put(self, offset: int, nbytes: int) -> None:
        """Free a range, whoever took its parts; one with a free part is refused."""
        nbytes = min(nbytes, self.nbytes - offset)
        if self.reference.is_live(offset, nbytes):
            self.real.put(offset, nbytes)
            self.reference.give(offset, nbytes)
            joined = self.real.joined_offset, self.real.joined_nbytes
            assert joined == self.reference.gap_around(offset)
        else:
            with pytest.raises(UnknownBlockError):
                self.real.put(offset, nbytes)

    def compare(self) -> None:
        """Compare everything that can be asked without a change."""
        gaps = self.reference.gaps()

        assert self.real.blocks() == gaps
        assert len(self.real) == len(gaps)
        assert self.real.largest() == max([nbytes for _, nbytes in gaps], default=0)


class SkipListAgainstReference(RuleBasedStateMachine):
    """Any sequence of calls leaves the free blocks that a look at all bytes finds."""

    @initialize()
    def start(self) -> None:
        self.both = BothArenas(ARENA_NBYTES)

    @rule(nbytes=SIZES)
    def take_first(self, nbytes: int) -> None:
        self.both.take_first(nbytes)

    @rule(nbytes=SIZES, most=MOST)
    def take_best(self, nbytes: int, most: int) -> None:
        self.both.take_best(nbytes, most)

    @rule(nbytes=SIZES, alignment=ALIGNMENTS)
    def take_aligned(self, nbytes: int, alignment: int) -> None:
        self.both.take_aligned(nbytes, alignment)

    @rule(offset=OFFSETS, nbytes=st.integers(1, 16))
    def take_at(self, offset: int, nbytes: int) -> None:
        self.both.take_at(offset, nbytes)

    @rule(offset=OFFSETS, nbytes=SIZES)
    def put(self, offset: int, nbytes: int) -> None:
        self.both.put(offset, nbytes)

    @rule(offset=OFFSETS)
    def covering(self, offset: int) -> None:
        expected = self.both.reference.gap_around(offset)[0]

        assert self.both.real.covering(offset) == expected

    @invariant()
    def same_free_blocks(self) -> None:
        self.both.compare()

    @invariant()
    def structure_is_sound(self) -> None:
        self.both.real.check()


TestSkipList = SkipListAgainstReference.TestCase
TestSkipList.settings = settings(
    max_examples=settings().max_examples // 2, stateful_step_count=50
)


@pytest.mark.parametrize("seed", range(4))
def test_a_walk_of_thousands_of_steps(seed: int) -> None:
    draw = random.Random(seed)
    both = BothArenas(1 << 12)

    for step in range(4000):
        offset = draw.randrange(both.nbytes)
        nbytes = draw.choice((1, 2, 3, 5, 8, draw.randrange(1, 64)))
        match draw.randrange(8):
            case 0 | 1:
                both.take_first(nbytes)
            case 2:
                both.take_best(nbytes, draw.choice((1, 2, 5, 1 << 20)))
            case 3:
                both.take_aligned(nbytes, 1 << draw.randrange(6))
            case 4:
                both.take_at(offset, nbytes)
            case _:
                both.put(offset, nbytes)
        both.compare()
        if step % 50 == 0:
            both.real.check()

    both.real.check()
