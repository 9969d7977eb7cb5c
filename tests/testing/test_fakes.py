"""The fake device: it fails as it is told to, and sees what its caller does wrong."""

import pytest

from madl import BackendCallError, OutOfMemoryError, Pool
from madl.backends.protocol import Capability, Reservation
from madl.testing import Failure, FakeBackend, Fault, MisuseError

UNIT = 4096
BUFFERS = Capability.COPY | Capability.FILL | Capability.STREAM_ORDERED


@pytest.fixture
def device() -> FakeBackend:
    return FakeBackend(capabilities=BUFFERS)


def content(device: FakeBackend, reservation: Reservation, nbytes: int = 4) -> bytes:
    found = bytearray(nbytes)
    device.copy_to_host(reservation, 0, memoryview(found))
    return bytes(found)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_the_call_that_is_named_fails_and_no_other(call: int) -> None:
    device = FakeBackend(fail_on_call=call)
    outcomes = []

    for _ in range(4):
        try:
            device.reserve(UNIT)
        except BackendCallError:
            outcomes.append("failed")
        else:
            outcomes.append("made")

    assert [n for n, one in enumerate(outcomes, 1) if one == "failed"] == [call]
    assert device.reserved_nbytes == 3 * UNIT


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (Failure.REFUSED, OutOfMemoryError),
        (Failure.BROKEN, BackendCallError),
        (Failure.INTERRUPTED, KeyboardInterrupt),
    ],
)
def test_each_kind_of_failure_raises_its_error(
    failure: Failure, error: type[BaseException]
) -> None:
    device = FakeBackend(fault=Fault(1, failure))

    with pytest.raises(error):
        device.reserve(UNIT)

    assert device.reserved_nbytes == 0


def test_what_is_given_back_is_not_refused() -> None:
    device = FakeBackend()
    reservation = device.reserve(UNIT)
    device.fail(Fault(1, Failure.REFUSED))

    with pytest.raises(BackendCallError):
        device.release(reservation)

    device.release(reservation)


def test_a_call_can_fail_after_taking_effect() -> None:
    device = FakeBackend(fault=Fault(1, has_effect=True))

    with pytest.raises(BackendCallError):
        device.reserve(UNIT)

    assert device.reserved_nbytes == UNIT


def test_a_fault_may_last_until_the_device_recovers() -> None:
    device = FakeBackend(fault=Fault(2, lasts=True))
    device.reserve(UNIT)
    for _ in range(3):
        with pytest.raises(BackendCallError):
            device.reserve(UNIT)

    device.recover()

    assert device.reserve(UNIT).nbytes == UNIT


@pytest.mark.parametrize("failing", range(1, 8))
@pytest.mark.parametrize("failure", [Failure.REFUSED, Failure.BROKEN])
def test_a_pool_survives_whichever_call_fails(failing: int, failure: Failure) -> None:
    device = FakeBackend(fault=Fault(failing, failure))
    pool = Pool(device, limit=1 << 20)
    held = []
    for nbytes in (100, 300_000, 5000):
        try:
            held.append(pool.allocate(nbytes))
        except (OutOfMemoryError, BackendCallError):
            pool.check()
    device.recover()

    held.append(pool.allocate(700))
    while held:
        held.pop().free()
    pool.check()
    pool.close()

    assert device.reserved_nbytes == 0


def test_work_of_a_stream_is_done_when_somebody_waits(device: FakeBackend) -> None:
    stream, reservation = device.make_stream(), device.reserve(UNIT)
    device.fill(reservation, 0, UNIT, 1)
    device.fill(reservation, 0, UNIT, 2, stream=stream)
    event = device.record(stream)

    before = content(device, reservation), device.is_done(event)
    device.synchronize(event)

    assert before == (b"\x01" * 4, False)
    assert (content(device, reservation), device.is_done(event)) == (b"\x02" * 4, True)


def test_work_can_be_done_piece_by_piece(device: FakeBackend) -> None:
    stream, reservation = device.make_stream(), device.reserve(UNIT)
    for value in (1, 2, 3):
        device.fill(reservation, 0, UNIT, value, stream=stream)

    done = stream.pump(2)

    assert (done, content(device, reservation)) == (2, b"\x02" * 4)
    assert (stream.pump(), stream.pump()) == (1, 0)


def test_a_stream_that_waits_has_the_other_work_done_first(device: FakeBackend) -> None:
    first, second = device.make_stream(), device.make_stream()
    reservation, found = device.reserve(UNIT), bytearray(4)
    device.fill(reservation, 0, UNIT, 5, stream=first)
    device.wait(second, device.record(first))
    device.fill(reservation, 0, UNIT, 6, stream=first)
    device.copy_to_host(reservation, 0, memoryview(found), stream=second)

    second.pump()

    assert found == b"\x05" * 4


def test_queued_work_is_done_before_its_memory_is_released(device: FakeBackend) -> None:
    stream, reservation = device.make_stream(), device.reserve(UNIT)
    device.fill(reservation, 0, UNIT, 1, stream=stream)

    device.release(reservation)

    assert stream.done_count == 1


def test_a_copy_reads_its_source_when_it_is_done(device: FakeBackend) -> None:
    stream, reservation = device.make_stream(), device.reserve(UNIT)
    source = bytearray(b"old!")
    device.copy_from_host(reservation, 0, memoryview(source), stream=stream)
    source[:] = b"new!"

    stream.pump()

    assert content(device, reservation) == b"new!"


def test_a_stream_of_another_device_is_refused(device: FakeBackend) -> None:
    stranger = FakeBackend(capabilities=BUFFERS).make_stream()

    with pytest.raises(ValueError, match="of another device than fake"):
        device.stream_key(stranger)


def test_what_is_not_committed_cannot_be_used() -> None:
    device = FakeBackend(capabilities=BUFFERS | Capability.COMMIT)
    reservation = device.reserve(2 * UNIT)
    device.commit(reservation, 0, UNIT)

    device.fill(reservation, 0, UNIT, 1)
    with pytest.raises(MisuseError, match="not committed"):
        device.fill(reservation, UNIT - 1, 2, 1)


def test_what_was_not_claimed_cannot_be_used() -> None:
    device = FakeBackend()
    reservation = device.reserve(UNIT)

    with pytest.raises(MisuseError, match="FILL was not claimed"):
        device.fill(reservation, 0, UNIT, 1)


def test_copies_that_overlap_are_misuse(device: FakeBackend) -> None:
    reservation = device.reserve(UNIT)

    with pytest.raises(MisuseError, match="overlaps"):
        device.copy_inside(reservation, 0, reservation, 100, 101)


def test_memory_committed_anew_holds_garbage() -> None:
    device = FakeBackend(capabilities=BUFFERS | Capability.COMMIT)
    reservation = device.reserve(UNIT)
    device.commit(reservation, 0, UNIT)
    device.fill(reservation, 0, UNIT, 0)

    device.decommit(reservation, 0, UNIT)
    device.commit(reservation, 0, UNIT)

    assert content(device, reservation) == b"\xa5" * 4


def test_offsets_need_no_memory() -> None:
    device = FakeBackend(total_nbytes=1 << 50)

    reservation = device.reserve(1 << 49)

    assert reservation.address is not None
    assert device.is_committed(reservation, 0, UNIT) is False
