"""While one thread is in the device, no other one is in the pool's books."""

import threading
from collections.abc import Callable

import pytest

from madl import Pool
from madl.backends.protocol import Reservation
from tests.fakes import FakeBackend

PAGE = 16 * 1024


class Meanwhile(FakeBackend):
    """Runs something in another thread while it commits; once."""

    def __init__(self) -> None:
        super().__init__()
        self.work: Callable[[], object] | None = None
        self.thread: threading.Thread | None = None
        self.had_to_wait = False

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """See whether the other thread ends before this call does."""
        if self.work is not None:
            self.thread = threading.Thread(target=self.work)
            self.work = None
            self.thread.start()
            self.thread.join(timeout=0.3)
            self.had_to_wait = self.thread.is_alive()
        super().commit(reservation, offset, nbytes)


CALLS: dict[str, Callable[[Pool], object]] = {
    "a miss": lambda pool: pool.allocate(700).free(),
    "a commit": lambda pool: pool.allocate(3 * PAGE).free(),
    "trim": lambda pool: pool.trim(),
    "stats": lambda pool: pool.stats(),
    "snapshot": lambda pool: pool.snapshot(),
    "check": lambda pool: pool.check(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_waits_for_one_that_is_in_the_device(
    call: Callable[[Pool], object],
) -> None:
    backend = Meanwhile()
    pool = Pool(backend, page_size=PAGE)
    pool.allocate(PAGE).free()
    held = pool.allocate(100)
    backend.work = lambda: call(pool)

    large = pool.allocate(2 * PAGE)

    assert backend.thread is not None
    backend.thread.join()
    assert backend.had_to_wait
    pool.check()
    large.free()
    held.free()


def test_a_free_waits_for_nobody() -> None:
    backend = Meanwhile()
    pool = Pool(backend, page_size=PAGE)
    held = pool.allocate(100)
    backend.work = held.free

    pool.allocate(2 * PAGE).free()

    assert backend.thread is not None
    assert not backend.had_to_wait
    pool.check()
