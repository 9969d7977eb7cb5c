"""The backend that counts the calls it passes on."""

from collections.abc import Callable

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

    assert counted.inner is inner
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


def test_a_question_does_not_count() -> None:
    counted = CountedBackend(FakeBackend(total_nbytes=1 << 20))

    assert counted.memory_info() == MemoryInfo(1 << 20, 1 << 20)
    assert counted.calls == 0


@pytest.mark.parametrize(
    ("capability", "call"),
    [
        ("COMMIT", lambda counted, piece: counted.commit(piece, 0, GRANULARITY)),
        ("COMMIT", lambda counted, piece: counted.decommit(piece, 0, GRANULARITY)),
        ("REMAP", lambda counted, piece: counted.remap(piece, 0, 4096, GRANULARITY)),
        ("COPY", lambda counted, piece: counted.copy_inside(piece, 0, piece, 8, 4)),
        (
            "COPY",
            lambda counted, piece: counted.copy_to_host(piece, 0, memoryview(b"")),
        ),
        (
            "COPY",
            lambda counted, piece: counted.copy_from_host(piece, 0, memoryview(b"")),
        ),
        ("FILL", lambda counted, piece: counted.fill(piece, 0, 8, 1)),
        ("VIEW", lambda counted, piece: counted.view(piece, 0, 8)),
        ("STREAM_ORDERED", lambda counted, piece: counted.stream_key("stream")),
        ("STREAM_ORDERED", lambda counted, piece: counted.record("stream")),
        ("STREAM_ORDERED", lambda counted, piece: counted.is_done("event")),
        ("STREAM_ORDERED", lambda counted, piece: counted.wait("stream", "event")),
        ("STREAM_ORDERED", lambda counted, piece: counted.synchronize("event")),
    ],
)
def test_a_backend_without_the_capability_is_not_called(
    capability: str, call: Callable[[CountedBackend, Reservation], None]
) -> None:
    counted = CountedBackend(BufferBackend())
    reservation = counted.reserve(2 * GRANULARITY)

    with pytest.raises(MissingCapabilityError) as caught:
        call(counted, reservation)

    assert str(caught.value) == (
        f"buffers has no {capability}. Try: a backend that declares what it implements"
    )
