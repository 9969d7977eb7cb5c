"""Between its bin and its handle a block is in flight, and nothing else may have it."""

import functools
import threading

import pytest

from madl import Memory, Pool
from madl.hotpath import place_of
from madl.pool.allocate import parts_of
from tests.interruptions import comes_between

NBYTES = 1000


def recover(pool: Pool) -> None:
    """Let another thread rebuild the pool, unless that has to wait for this one."""
    parts = parts_of(pool)
    if parts.lock.is_mine:
        return
    parts.shared.was_interrupted = True
    thread = threading.Thread(target=pool.check)
    thread.start()
    thread.join()


@pytest.mark.parametrize("is_in_bin", [True, False])
def test_a_recovery_in_another_thread_leaves_it_alone(is_in_bin: bool) -> None:
    moments = 0
    is_inside = True
    while is_inside:
        moments += 1
        pool = Pool("sim")
        held: list[Memory] = []
        pool.allocate(NBYTES if is_in_bin else 2 * NBYTES).free()

        is_inside = comes_between(
            lambda pool=pool, held=held: held.append(pool.allocate(NBYTES)),  # type: ignore[misc]
            moments,
            functools.partial(recover, pool),
        )

        held += [pool.allocate(NBYTES) for _ in range(3)]
        assert len({place_of(memory) for memory in held}) == len(held)
        pool.check()
