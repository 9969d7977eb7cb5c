"""The backend that counts the calls it passes on."""

import pytest

from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability, MemoryInfo, Reservation
from madl.errors import BackendCallError, MissingCapabilityError
from tests.fakes import GRANULARITY, FakeBackend, Fault


class BufferBackend:
    """What the protocol demands, and nothing else."""

    device = "buffers"
    capabilities = Capability.NONE
    granularity = GRANULARITY
    alignment = GRANULARITY

    def reserve(self, nbytes: int) -> Reservation:
        return Reservation("one buffer", nbytes, None)

    def release(self, reservation: Reservation) -> None:
        pass

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(1 << 20, 1 << 20)


def test_it_has_the_numbers_of_the_backend_within() -> None:
    inner = FakeBackend()

    counted = CountedBackend(inner)

    assert counted.backend is inner
    assert (counted.device, counted.capabilities) == (inner.device, inner.capabilities)
    assert (counted.granularity, counted.alignment) == (4096, 65536)


def test_every_call_to_the_device_counts() -> None:
    counted = CountedBackend(FakeBackend())

    reservation = counted.reserve(8 * GRANULARITY)
    counted.commit(reservation, 0, 2 * GRANULARITY)
    counted.remap(reservation, 0, 4 * GRANULARITY, GRANULARITY)
    counted.decommit(reservation, GRANULARITY, GRANULARITY)
    counted.release(reservation)

    assert counted.calls == 5


def test_a_refused_call_counts_too() -> None:
    counted = CountedBackend(FakeBackend(fault=Fault(1)))

    with pytest.raises(BackendCallError):
        counted.reserve(GRANULARITY)

    assert counted.calls == 1


def test_a_question_is_the_backends_own() -> None:
    counted = CountedBackend(FakeBackend(total_nbytes=1 << 20))

    assert counted.backend.memory_info() == MemoryInfo(1 << 20, 1 << 20)
    assert counted.calls == 0


def test_a_range_is_settled_by_a_backend_that_can() -> None:
    counted = CountedBackend(FakeBackend())
    reservation = counted.reserve(4 * GRANULARITY)
    counted.commit(reservation, GRANULARITY, GRANULARITY)
    before = counted.calls

    counted.settle(reservation, 0, 4 * GRANULARITY, committed_nbytes=0)

    assert counted.calls == before
    counted.commit(reservation, 0, 4 * GRANULARITY)


def test_a_range_is_else_decommitted_if_it_is_committed() -> None:
    backend = FakeBackend()
    backend.capabilities &= ~Capability.SETTLE
    counted = CountedBackend(backend)
    reservation = counted.reserve(2 * GRANULARITY)
    counted.commit(reservation, 0, 2 * GRANULARITY)

    counted.settle(reservation, 0, 2 * GRANULARITY, committed_nbytes=0)

    assert backend.committed_nbytes == 0
    assert counted.calls == 3


@pytest.mark.parametrize(
    ("claimed", "lacking"),
    [
        ("COMMIT", "commit, decommit, page_nbytes"),
        ("REMAP", "commit, decommit, page_nbytes, remap"),
        ("FILL", "fill"),
        ("PEER_COPY", "copy_from_device, copy_from_host, copy_inside, copy_to_host, "),
        ("DESCRIBE", "describe"),
    ],
)
def test_a_backend_without_the_methods_that_it_claims_is_refused(
    claimed: str, lacking: str
) -> None:
    backend = BufferBackend()
    backend.capabilities = Capability[claimed]

    with pytest.raises(MissingCapabilityError) as caught:
        CountedBackend(backend)

    assert str(caught.value).startswith(f"buffers has no {lacking}")
    assert str(caught.value).endswith(
        f", which {claimed} promises. Try: a backend that declares what it implements"
    )
