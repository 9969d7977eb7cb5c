"""What a program raises inside NumPy stays what it raised, while a pool takes back."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from madl import Pool
from madl.backends.cpu import CpuBackend
from madl.backends.protocol import Reservation
from madl.integrations.numpy import route

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
