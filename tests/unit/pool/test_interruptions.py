"""A signal handler raises, as Ctrl-C does, at every moment of a call in turn."""

import contextlib
import gc
from collections.abc import Callable, Iterator

import pytest

from madl import Memory, OutOfMemoryError, Pool, hotpath
from madl.backends.protocol import Capability
from madl.backends.sim import SimBackend
from madl.pool.allocate import parts_of
from madl.testing import FakeBackend
from tests.interruptions import is_interrupted

MIB = 1 << 20

Held = list[Memory]


class Case:
    """A device, a pool of it, and what is live there."""

    def __init__(
        self,
        device: SimBackend | FakeBackend,
        *,
        limit: str | None = None,
        pooling: bool = True,
    ) -> None:
        self.device = device
        self.pool = Pool(device, limit=limit, pooling=pooling)
        self.held: Held = []

    def take(self, *sizes: int, tag: str | None = None) -> None:
        for nbytes in sizes:
            self.held.append(self.pool.allocate(nbytes, tag=tag))

    def use(self) -> None:
        """Do something that puts right what was interrupted."""
        if not self.pool.is_closed:
            self.pool.check()
            self.pool.allocate(700).free()

    def give(self, *places: int) -> None:
        for place in sorted(places, reverse=True):
            self.held.pop(place).free()


def take_first(case: Case) -> Callable[[], object]:
    return lambda: case.take(3 * MIB)


def take_more(case: Case) -> Callable[[], object]:
    case.take(3 * MIB, 3 * MIB, 3 * MIB)
    case.give(1)
    return lambda: case.take(5 * MIB)


def take_from_a_bin(case: Case) -> Callable[[], object]:
    case.take(1000)
    case.give(0)
    return lambda: case.take(1000)


def take_aligned(case: Case) -> Callable[[], object]:
    case.take(1000)
    return lambda: case.held.append(case.pool.allocate(3 * MIB, alignment=1 << 16))


def take_for_a_tag(case: Case) -> Callable[[], object]:
    return lambda: case.take(3 * MIB, tag="model/encoder")


def use_streams(case: Case) -> Callable[[], object]:
    """Blocks that a second stream has used wait for it, and pages go to and fro."""
    assert isinstance(case.device, FakeBackend)
    first, second = case.device.make_stream(), case.device.make_stream()

    def take(nbytes: int, stream: object) -> None:
        case.held.append(case.pool.allocate(nbytes, stream=stream))

    take(MIB // 4, first)
    take(MIB // 4, second)

    def act() -> None:
        case.held[0].record_stream(second)
        case.give(0)
        take(MIB // 2, second)
        case.pool.forget_stream(first)
        case.pool.trim()

    return act


def free(case: Case) -> Callable[[], object]:
    case.take(1000)
    return lambda: case.give(0)


def recycle(case: Case) -> Callable[[], object]:
    case.take(*[4 * MIB] * 5)
    case.give(0, 2)
    return lambda: case.take(6 * MIB)


def run_out(case: Case) -> Callable[[], object]:
    case.take(15 * MIB, 1000)

    def act() -> None:
        with contextlib.suppress(OutOfMemoryError):
            case.take(6 * MIB)

    return act


def trim(case: Case) -> Callable[[], object]:
    recycle(case)
    return case.pool.trim


def close(case: Case) -> Callable[[], object]:
    recycle(case)
    return case.pool.close


def free_the_last_of_a_closed_pool(case: Case) -> Callable[[], object]:
    case.take(3 * MIB)
    case.pool.close()
    return lambda: case.give(0)


def take_and_give_without_pooling(case: Case) -> Callable[[], object]:
    case.take(1000)

    def act() -> None:
        case.take(5 * MIB)
        case.give(0)
        case.take(100)

    return act


def verify(case: Case) -> None:
    """Nothing is lost, nothing is counted wrongly, and the pool works."""
    pool = case.pool
    if not pool.is_closed:
        pool.check()
        live = sum(memory.nbytes for memory in case.held if not memory.is_freed)
        assert pool.stats().live_nbytes == live
        pool.allocate(MIB).free()
        pool.check()
    case.held.clear()
    if not pool.is_closed:
        pool.trim()
        pool.check()
    pool.close()
    assert pool.stats().committed_nbytes == 0
    # Limits of a tag may count what was interrupted, and never less than there is.
    assert parts_of(pool).growth.budget.device.tag("model").live_nbytes >= 0
    assert parts_of(pool).growth.budget.device.committed_nbytes == 0
    assert case.device.committed_nbytes == 0


SIMULATED = [
    take_first,
    take_more,
    take_from_a_bin,
    take_aligned,
    take_for_a_tag,
    free,
    recycle,
    run_out,
    trim,
    close,
    free_the_last_of_a_closed_pool,
]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Let what was interrupted end here, and not in another test."""
    yield
    gc.collect()


def interrupt_everywhere(
    make: Callable[[], Case], prepare: Callable[[Case], Callable[[], object]]
) -> int:
    """Return how many moments there were."""
    moments = 0
    while True:
        # Else what the one before left ends in this one, whose moments have no end.
        gc.collect()
        case = make()
        act = prepare(case)
        moments += 1
        is_inside = is_interrupted(act, moments, case.use)
        verify(case)
        if not is_inside:
            return moments - 1


pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"  # of what finalizers swallow
)


@pytest.mark.parametrize("prepare", SIMULATED)
def test_whatever_is_interrupted_is_put_right(
    prepare: Callable[[Case], Callable[[], object]],
) -> None:
    def make() -> Case:
        return Case(SimBackend(total_nbytes=64 * MIB), limit="20 MiB")

    moments = interrupt_everywhere(make, prepare)

    is_short = prepare in (take_from_a_bin, free)
    assert moments >= (0 if is_short and hotpath.IS_COMPILED else 1 if is_short else 10)


def test_without_pooling_too() -> None:
    def make() -> Case:
        return Case(SimBackend(total_nbytes=64 * MIB), pooling=False)

    assert interrupt_everywhere(make, take_and_give_without_pooling) > 30


@pytest.mark.parametrize("commits", [True, False])
def test_and_with_streams(commits: bool) -> None:
    capabilities = Capability.STREAM_ORDERED
    if commits:
        capabilities |= Capability.COMMIT | Capability.REMAP

    def make() -> Case:
        return Case(FakeBackend(total_nbytes=4 * MIB, capabilities=capabilities))

    assert interrupt_everywhere(make, use_streams) > 100
