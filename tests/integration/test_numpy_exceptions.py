"""What a program raises inside NumPy stays what it raised, while a pool takes back."""

import ctypes
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import madl
from madl import Pool
from madl.backends.cpu import CpuBackend
from madl.backends.protocol import Reservation
from madl.integrations.numpy import route
from tests.programs import run_as_file

pytest.importorskip("madl.native.numpy_handler")


class Unconvertible:
    def __float__(self) -> float:
        raise KeyError("mine")


class Unaddable:
    def __radd__(self, other: object) -> object:
        raise LookupError("mine")


def an_element_fails() -> None:
    np.array([1.0, 2.0, Unconvertible()], dtype=float)


def an_iterator_fails() -> None:
    np.fromiter((1 / (500 - i) for i in range(1000)), float)


def a_reshape_fails() -> None:
    np.array([1.0, 2.0, 3.0] * 10).astype("i4").reshape(7, 7)


def a_ufunc_fails() -> None:
    np.add(np.ones(3), np.array([Unaddable()] * 3, object))


def an_index_fails() -> None:
    np.ones(30)[np.arange(31)]


def a_function_fails() -> None:
    def fail(row: object) -> float:
        raise KeyError(row)

    np.apply_along_axis(fail, 1, np.ones((8, 8)))


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool("cpu")
    yield pool
    assert pool.stats().live_nbytes == 0
    pool.check()


@pytest.mark.parametrize(
    ("fail", "error"),
    [
        (an_element_fails, KeyError),
        (an_iterator_fails, ZeroDivisionError),
        (a_reshape_fails, ValueError),
        (a_ufunc_fails, LookupError),
        (an_index_fails, IndexError),
        (a_function_fails, KeyError),
    ],
)
@pytest.mark.parametrize("is_warm", [False, True])
def test_an_exception_in_flight_stays_what_it_was(
    pool: Pool, fail: Callable[[], None], error: type[Exception], is_warm: bool
) -> None:
    with route(1, pool):
        if is_warm:
            with pytest.raises(error):
                fail()
        with pytest.raises(error) as caught:
            fail()

    assert caught.value.__context__ is None
    del caught  # its traceback has the arrays
    assert pool.stats().allocation_count > 0


def test_an_exception_stays_when_the_last_array_closes_the_pool(pool: Pool) -> None:
    class Closing:
        def __float__(self) -> float:
            pool.close()
            raise KeyError("mine")

    with route(1, pool), pytest.raises(KeyError, match="mine"):
        np.array([1.0, 2.0, Closing()], dtype=float)

    assert pool.stats().committed_nbytes == 0


class Interrupted(CpuBackend):
    """A backend whose first reservation a user interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.interruptions = 0

    def reserve(self, nbytes: int) -> Reservation:
        if not self.interruptions:
            self.interruptions += 1
            raise KeyboardInterrupt
        return super().reserve(nbytes)


def make_and_go_on() -> None:
    np.empty(4096, np.uint8)
    for _ in range(1_000_000):  # NumPy cannot pass it on; a later step does
        pass


def test_an_interruption_is_no_lack_of_memory() -> None:
    pool = Pool(Interrupted())

    with route(4096, pool), pytest.raises(KeyboardInterrupt):
        make_and_go_on()

    assert pool.stats().allocation_count == 1


class Cancelled(BaseException):
    """What a timeout or a canceller raises in a thread."""


def outcome_in_a_thread(work: Callable[[], object]) -> BaseException | None:
    """Return what a function raises in a thread of its own."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def cancel(nbytes: int) -> None:
    """Have this thread cancelled while it asks for memory, once."""
    ident = ctypes.c_ulong(threading.get_ident())
    if ident.value not in cancelled:
        cancelled.add(ident.value)
        error = ctypes.py_object(Cancelled)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error)
        for _ in range(1000):
            pass


cancelled: set[int] = set()


@pytest.fixture
def full(pool: Pool) -> Iterator[Pool]:
    """Return a pool that asks its reclaimers for everything."""
    small = Pool("cpu", limit="2 MiB")
    held = [small.allocate("1.5 MiB")]

    def spare(nbytes: int) -> None:
        held.clear()

    small.on_out_of_memory(spare, priority=2)
    cancelled.clear()
    yield small
    gc.collect()
    assert small.stats().live_nbytes == 0
    small.check()


def make_in(pool: Pool) -> None:
    with route(4096, pool):
        np.empty(1 << 20, np.uint8)


def test_a_thread_that_was_cancelled_hears_of_it_when_its_route_ends(
    full: Pool,
) -> None:
    full.on_out_of_memory(cancel, priority=1)

    assert isinstance(outcome_in_a_thread(lambda: make_in(full)), Cancelled)


def test_a_thread_that_was_cancelled_hears_of_it_when_it_allocates(full: Pool) -> None:
    full.on_out_of_memory(cancel, priority=1)
    other = Pool("cpu")

    def work() -> None:
        inside = route(4096, full)
        inside.install()
        np.empty(1 << 20, np.uint8)
        other.allocate(512)

    assert isinstance(outcome_in_a_thread(work), Cancelled)
    assert isinstance(other.allocate(512), madl.Memory)  # no other thread does


def test_a_thread_hears_of_it_before_it_enters_another_route(full: Pool) -> None:
    full.on_out_of_memory(cancel, priority=1)

    def work() -> None:
        inside = route(4096, full)
        inside.install()
        np.empty(1 << 20, np.uint8)
        inside.install()

    assert isinstance(outcome_in_a_thread(work), Cancelled)


def test_what_a_thread_never_hears_of_is_reported(
    full: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[type[BaseException] | None] = []
    full.on_out_of_memory(cancel, priority=1)
    monkeypatch.setattr(
        sys, "unraisablehook", lambda about: reported.append(about.exc_type)
    )

    def work() -> None:
        route(4096, full).install()
        np.empty(1 << 20, np.uint8)

    assert outcome_in_a_thread(work) is None
    gc.collect()
    assert reported == [Cancelled]
    assert isinstance(full.allocate(512), madl.Memory)


@pytest.fixture
def taken() -> Iterator[Pool]:
    """Return a pool that has nothing left, and whose reclaimer fails."""

    def fail(nbytes: int) -> None:
        raise LookupError("the cache is broken")

    small = Pool("cpu", limit="2 MiB")
    held = small.allocate("1.5 MiB")
    small.on_out_of_memory(fail)
    yield small
    held.free()


def test_a_reclaimers_own_error_follows_the_memory_error(taken: Pool) -> None:
    error = outcome_in_a_thread(lambda: make_in(taken))

    assert isinstance(error, LookupError)
    assert isinstance(error.__context__, MemoryError)


def test_what_the_caller_handles_is_not_taken_for_a_reclaimers() -> None:
    small = Pool("cpu", limit="2 MiB")
    held = small.allocate("1.5 MiB")

    def work() -> None:
        try:
            raise LookupError("handled")
        except LookupError:
            make_in(small)

    assert isinstance(outcome_in_a_thread(work), MemoryError)
    held.free()


def test_a_closed_pool_is_a_lack_of_memory_and_nothing_else() -> None:
    pool = Pool("cpu")

    def work() -> None:
        with route(4096, pool):
            pool.close()
            np.empty(1 << 20, np.uint8)

    assert isinstance(outcome_in_a_thread(work), MemoryError)


STORM = """
import signal, sys, time
import numpy as np
from madl import Pool
from madl.integrations.numpy import route

class Storm(Exception):
    pass

def rage(number, frame):
    raise Storm

sys.unraisablehook = lambda about: None  # one may come in a finalizer
pool = Pool("cpu", limit="64 MiB", debug=False, pooling=sys.argv[1] == "pooling")
inside = route(4096, pool)
inside.install()
held, seen = [], 0
end = time.monotonic() + 2
signal.signal(signal.SIGALRM, rage)
while time.monotonic() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        while True:
            held.append(np.empty(5000 + 4096 * len(held), np.uint8))
            if len(held) > 50:
                held.clear()
    except Storm:
        seen += 1
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Storm:
            pass
signal.signal(signal.SIGALRM, signal.SIG_IGN)
held.clear()
inside.uninstall()
pool.check()
pool.trim()
stats = pool.stats()
assert seen > 5, seen  # fewer come where others use the machine
print(stats.live_nbytes, stats.cached_nbytes, stats.committed_nbytes)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="it needs a timer")
@pytest.mark.parametrize("pooling", ["pooling", "dedicated"])
def test_a_storm_of_signals_is_no_lack_of_memory_and_loses_none(pooling: str) -> None:
    done = run_as_file(STORM, pooling)

    assert (done.stdout, done.stderr) == ("0 0 0\n", "")
