"""The device of offsets only."""

import pytest

from madl.backends.protocol import Capability, MemoryInfo, RemapBackend, Reservation
from madl.backends.sim import SimBackend
from madl.errors import BackendCallError, OutOfMemoryError

KIB = 1024


def test_it_can_remap_but_has_no_addresses() -> None:
    backend = SimBackend()

    assert isinstance(backend, RemapBackend)
    assert (
        Capability.COMMIT | Capability.REMAP | Capability.SETTLE in backend.capabilities
    )
    assert backend.reserve(4 * KIB).address is None


def test_without_commits_it_hands_out_whole_buffers() -> None:
    backend = SimBackend(commits=False)

    backend.reserve(64 * KIB)

    assert backend.capabilities == Capability.SIMULATED
    assert backend.committed_nbytes == 64 * KIB


def test_a_reservation_takes_no_memory() -> None:
    backend = SimBackend(total_nbytes=64 * KIB)

    backend.reserve(1 << 40)

    assert backend.committed_nbytes == 0
    assert backend.memory_info() == MemoryInfo(64 * KIB, 64 * KIB)


def test_commit_and_decommit_are_counted() -> None:
    backend = SimBackend(total_nbytes=64 * KIB)
    reservation = backend.reserve(1 << 20)

    backend.commit(reservation, 0, 16 * KIB)
    backend.commit(reservation, 32 * KIB, 8 * KIB)
    backend.decommit(reservation, 0, 4 * KIB)

    assert backend.committed_nbytes == 20 * KIB
    assert backend.memory_info() == MemoryInfo(64 * KIB, 44 * KIB)


def test_remap_changes_no_count() -> None:
    backend = SimBackend()
    reservation = backend.reserve(64 * KIB)
    backend.commit(reservation, 0, 8 * KIB)

    backend.remap(reservation, 0, 16 * KIB, 8 * KIB)

    assert backend.committed_nbytes == 8 * KIB


def test_what_moved_to_another_reservation_is_released_with_it() -> None:
    backend = SimBackend()
    source, target = backend.reserve(64 * KIB), backend.reserve(64 * KIB)
    backend.commit(source, 0, 8 * KIB)

    backend.remap(source, 0, 16 * KIB, 8 * KIB, into=target)
    backend.release(source)

    assert backend.committed_nbytes == 8 * KIB
    backend.release(target)
    assert backend.committed_nbytes == 0


def test_more_cannot_be_moved_than_is_committed() -> None:
    backend = SimBackend()
    reservation = backend.reserve(64 * KIB)
    backend.commit(reservation, 0, 4 * KIB)

    with pytest.raises(BackendCallError):
        backend.remap(reservation, 0, 16 * KIB, 8 * KIB)


def test_release_gives_back_what_is_committed() -> None:
    backend = SimBackend()
    kept, released = backend.reserve(8 * KIB), backend.reserve(8 * KIB)
    backend.commit(kept, 0, 4 * KIB)
    backend.commit(released, 0, 8 * KIB)

    backend.release(released)

    assert backend.committed_nbytes == 4 * KIB


def test_more_than_the_device_has_is_refused() -> None:
    backend = SimBackend(total_nbytes=16 * KIB)
    reservation = backend.reserve(64 * KIB)
    backend.commit(reservation, 0, 12 * KIB)

    with pytest.raises(OutOfMemoryError) as caught:
        backend.commit(reservation, 12 * KIB, 8 * KIB)

    assert str(caught.value) == (
        "sim: cannot place 8.0 KiB; sim_commit failed with 12 (the device has 16384 "
        "bytes). Try: free some memory, or end other programs that use this device."
    )
    assert backend.committed_nbytes == 12 * KIB


@pytest.mark.parametrize("nbytes", [0, -4096, 100])
def test_a_reservation_of_no_whole_granules_is_an_error(nbytes: int) -> None:
    backend = SimBackend()

    with pytest.raises(BackendCallError) as caught:
        backend.reserve(nbytes)

    assert str(caught.value) == (
        f"sim: cannot reserve: sim_reserve failed with 22 ({nbytes} bytes)"
    )


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(-4096, 4096), (0, 0), (0, 12288), (8192, 4096), (100, 4096), (0, 100)],
)
def test_a_range_outside_the_reservation_is_an_error(offset: int, nbytes: int) -> None:
    backend = SimBackend()
    reservation = backend.reserve(8192)

    with pytest.raises(BackendCallError):
        backend.commit(reservation, offset, nbytes)

    assert backend.committed_nbytes == 0


def test_more_cannot_be_decommitted_than_is_committed() -> None:
    backend = SimBackend()
    reservation = backend.reserve(8192)
    backend.commit(reservation, 0, 4096)

    with pytest.raises(BackendCallError):
        backend.decommit(reservation, 0, 8192)

    assert backend.committed_nbytes == 4096


def test_a_second_release_is_an_error() -> None:
    backend = SimBackend()
    reservation = backend.reserve(4096)
    backend.release(reservation)

    with pytest.raises(ValueError, match=r"of this backend \(sim\) that was not"):
        backend.release(reservation)


def test_a_foreign_reservation_is_an_error() -> None:
    with pytest.raises(ValueError, match="got Reservation\\(native='of another'"):
        SimBackend().commit(Reservation("of another", 4096, None), 0, 4096)
