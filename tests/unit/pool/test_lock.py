"""While one thread is in the device, no other one is in the pool's books."""

import threading
from collections.abc import Callable

import pytest

from madl import Pool
from madl.backends.protocol import Reservation
from madl.pool.allocate import parts_of
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


def test_who_may_not_wait_gets_a_block_with_its_guards() -> None:
    pool, other = Pool("cpu", debug=True), Pool("cpu")
    has_lock, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        has_lock.set()
        may_go.wait(10)

    holder = threading.Thread(target=lambda: parts_of(pool).lock.hold(hold))
    holder.start()
    has_lock.wait()
    try:
        # As a finalizer does in the middle of a call of another pool.
        memory = parts_of(other).lock.hold(lambda: pool.allocate(4096))
    finally:
        may_go.set()
        holder.join()
    memory.fill(1)

    pool.check()
    memory.free()
    assert pool.close().live_count == 0


def test_what_was_freed_beside_a_failed_call_of_a_closed_pool_goes_back() -> None:
    pool = Pool("cpu")
    memory = pool.allocate(4096)
    pool.close()

    def fail() -> None:
        thread = threading.Thread(target=memory.free)
        thread.start()
        thread.join()
        raise LookupError

    with pytest.raises(LookupError):
        parts_of(pool).lock.hold(fail)

    assert pool.stats().committed_nbytes == 0
