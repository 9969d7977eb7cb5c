"""Memory that the CPU cannot reach: copies, fills and views are the device's."""

import pytest

import madl
import madl.testing
from madl import Capability, FreedMemoryError, Memory, MissingCapabilityError, Pool
from madl import hotpath as hot
from madl.backends.protocol import Backend, MemoryInfo, Reservation
from madl.memory.copies import STAGE_NBYTES

ALL = Capability.COPY | Capability.FILL | Capability.VIEW | Capability.STREAM_ORDERED


class ByteDevice:
    """A device whose memory is bytes that only its own calls reach."""

    def __init__(self, capabilities: Capability = ALL, device: str = "bytes") -> None:
        self.device = device
        self.capabilities = capabilities
        self.granularity = 512
        self.alignment = 512
        self.log: list[tuple[object, ...]] = []

    def reserve(self, nbytes: int) -> Reservation:
        return Reservation(bytearray(nbytes), nbytes, None)

    def release(self, reservation: Reservation) -> None:
        pass

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(1 << 30, 1 << 30)

    def copy_from_host(
        self,
        reservation: Reservation,
        offset: int,
        source: memoryview,
        *,
        stream: object = None,
    ) -> None:
        self.log.append(("from host", stream))
        _bytes(reservation)[offset : offset + source.nbytes] = source

    def copy_to_host(
        self,
        reservation: Reservation,
        offset: int,
        destination: memoryview,
        *,
        stream: object = None,
    ) -> None:
        self.log.append(("to host", stream))
        destination[:] = _bytes(reservation)[offset : offset + destination.nbytes]

    def copy_inside(
        self,
        source: Reservation,
        source_offset: int,
        destination: Reservation,
        destination_offset: int,
        nbytes: int,
        *,
        stream: object = None,
    ) -> None:
        self.log.append(("inside", stream))
        piece = _bytes(source)[source_offset : source_offset + nbytes]
        _bytes(destination)[destination_offset : destination_offset + nbytes] = piece

    def fill(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        value: int,
        *,
        stream: object = None,
    ) -> None:
        self.log.append(("fill", stream))
        _bytes(reservation)[offset : offset + nbytes] = bytes([value]) * nbytes

    def view(self, reservation: Reservation, offset: int, nbytes: int) -> object:
        return (reservation.native, offset, nbytes)

    def stream_key(self, stream: object) -> str:
        return str(stream)

    def record(self, stream: object) -> object:
        self.log.append(("record", stream))
        return f"event of {stream}"

    def is_done(self, event: object) -> bool:
        return True

    def wait(self, stream: object, event: object) -> None:
        self.log.append(("wait", stream, event))

    def synchronize(self, event: object) -> None:
        self.log.append(("synchronize", event))


class PeerDevice(ByteDevice):
    """A device that copies from others of its kind, but for what the CPU reaches."""

    def __init__(self, capabilities: Capability = ALL, device: str = "bytes") -> None:
        super().__init__(capabilities | Capability.PEER_COPY, device)

    def reaches(self, backend: Backend) -> bool:
        both = self.capabilities | backend.capabilities
        is_other = isinstance(backend, PeerDevice) and backend.device != self.device
        return is_other and not both & (Capability.PINNED | Capability.MANAGED)

    def shares_streams(self, backend: Backend) -> bool:
        return False

    def copy_from_device(
        self,
        backend: object,
        source: Reservation,
        source_offset: int,
        destination: Reservation,
        destination_offset: int,
        nbytes: int,
        *,
        stream: object = None,
    ) -> None:
        assert isinstance(backend, PeerDevice)
        self.log.append((f"from {backend.device}", stream))
        self.copy_inside(source, source_offset, destination, destination_offset, nbytes)
        del self.log[-1]


def _bytes(reservation: Reservation) -> bytearray:
    assert isinstance(reservation.native, bytearray)
    return reservation.native


@pytest.fixture
def device() -> ByteDevice:
    return ByteDevice()


@pytest.fixture
def pool(device: ByteDevice) -> Pool:
    return Pool(device)


class Owners:
    """Which stream owns a memory, for tests: what its lane knows elsewhere."""

    def __init__(self) -> None:
        self.of: dict[int, object] = {}
        self.recorded: list[tuple[int, object]] = []
        self._asked: Memory | None = None

    def pool_of(self, memory: Memory) -> hot.HotPool:
        self._asked = memory
        return hot.pool_of(memory)

    def lane_of(self, pool: hot.HotPool) -> "Owners":
        return self

    @property
    def stream(self) -> object:
        return self.of.get(id(self._asked))

    def record_stream(self, memory: Memory, stream: object) -> None:
        self.recorded.append((id(memory), stream))


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> Owners:
    owners = Owners()
    monkeypatch.setattr("madl.memory.methods.pool_of", owners.pool_of)
    monkeypatch.setattr("madl.memory.methods.lane_of", owners.lane_of)
    return owners


def test_bytes_go_to_the_device_and_back(pool: Pool) -> None:
    memory = pool.allocate(8)
    memory.copy_from(b"12345678")
    found = bytearray(8)

    memory.copy_to(found)

    assert found == memory.tobytes() == b"12345678"


def test_a_fill_is_the_devices(pool: Pool, device: ByteDevice) -> None:
    memory = pool.allocate(3)

    memory.fill(7)

    assert memory.tobytes() == b"\7\7\7"
    assert device.log[0] == ("fill", None)


def test_a_smaller_source_fills_the_start(pool: Pool) -> None:
    memory = pool.allocate(6)
    memory.fill(1)

    memory.copy_from(b"abc")

    assert memory.tobytes() == b"abc\1\1\1"


def test_memory_is_copied_inside_the_device(pool: Pool, device: ByteDevice) -> None:
    source, destination = pool.allocate(4), pool.allocate(8)
    source.copy_from(b"abcd")
    destination.fill(0)
    device.log.clear()

    madl.copy(destination[2:6], source)

    assert device.log == [("inside", None)]
    assert destination.tobytes() == b"\0\0abcd\0\0"


@pytest.mark.parametrize("direction", ["to the host", "from the host"])
def test_host_and_device_memory_are_copied(pool: Pool, direction: str) -> None:
    with Pool("cpu") as host_pool:
        device, host = pool.allocate(4), host_pool.allocate(4)
        source, destination = (
            (device, host) if direction == "to the host" else (host, device)
        )
        source.copy_from(b"abcd")

        madl.copy(destination, source)

        assert destination.tobytes() == b"abcd"


def test_two_devices_copy_through_the_host(pool: Pool) -> None:
    nbytes = STAGE_NBYTES + 5
    source = pool.allocate(nbytes)
    source.copy_from(_content(nbytes))
    destination = Pool(ByteDevice()).allocate(nbytes)

    madl.copy(destination, source)

    assert destination.tobytes() == _content(nbytes)


def test_a_device_copies_from_another_of_its_kind_itself(owners: Owners) -> None:
    first, second = PeerDevice(device="first"), PeerDevice(device="second")
    source, destination = Pool(first).allocate(8), Pool(second).allocate(8)
    source.copy_from(b"abcdefgh")
    destination.fill(0)
    owners.of = {id(source): "r", id(destination): "w"}
    first.log.clear()
    second.log.clear()

    destination.copy_from(source)

    assert first.log == [("record", "r"), ("synchronize", "event of r")]
    assert second.log == [
        ("from first", "w"),
        ("record", "w"),
        ("synchronize", "event of w"),
    ]
    owners.of.clear()
    assert destination.tobytes() == b"abcdefgh"


def test_a_device_waits_for_the_stream_of_work_without_one(owners: Owners) -> None:
    first, second = PeerDevice(device="first"), PeerDevice(device="second")
    source, destination = Pool(first).allocate(4), Pool(second).allocate(6)
    source.copy_from(b"abcd")
    destination.fill(1)
    first.log.clear()
    second.log.clear()

    madl.copy(destination[1:5], source[:3])

    assert first.log == [("record", None), ("synchronize", "event of None")]
    assert second.log == [("from first", None)]
    assert destination.tobytes() == b"\1abc\1\1"


@pytest.mark.parametrize(
    "other",
    [
        ByteDevice(device="other"),
        PeerDevice(device="peer"),
        PeerDevice(ALL | Capability.PINNED, "pinned"),
        PeerDevice(ALL | Capability.MANAGED, "managed"),
    ],
    ids=["of another kind", "the same device", "pinned", "managed"],
)
@pytest.mark.parametrize("direction", ["to", "from"])
def test_all_other_copies_between_backends_go_through_the_host(
    other: ByteDevice, direction: str
) -> None:
    there, here = Pool(other).allocate(4), Pool(PeerDevice(device="peer")).allocate(4)
    source, destination = (here, there) if direction == "to" else (there, here)
    source.copy_from(b"abcd")
    other.log.clear()

    destination.copy_from(source)

    assert destination.tobytes() == b"abcd"
    first = {"to": "from host", "from": "to host"}[direction]
    assert other.log[0] == (first, None)


def _content(nbytes: int) -> bytes:
    return (bytes(range(251)) * (nbytes // 251 + 1))[:nbytes]


@pytest.mark.parametrize(("to", "of"), [(3, 0), (0, 3)])
@pytest.mark.parametrize("nbytes", [20, STAGE_NBYTES + 20])
def test_parts_that_overlap_are_copied_as_through_a_third(
    pool: Pool, to: int, of: int, nbytes: int
) -> None:
    memory = pool.allocate(nbytes)
    memory.copy_from(_content(nbytes))
    length = nbytes - 3

    madl.copy(memory[to : to + length], memory[of : of + length])

    expected = bytearray(_content(nbytes))
    expected[to : to + length] = _content(nbytes)[of : of + length]
    assert memory.tobytes() == expected


def test_resize_keeps_the_content(pool: Pool) -> None:
    memory = pool.allocate(4)
    memory.copy_from(b"abcd")

    memory.resize(2000)

    assert memory[:4].tobytes() == b"abcd"
    memory.resize(2)
    assert memory.tobytes() == b"ab"


def test_native_is_the_devices_view(pool: Pool) -> None:
    pool.allocate(100).free()
    memory = pool.allocate(5000)

    native = memory[512:600].native

    assert isinstance(native, tuple)
    assert native[2] == 88
    assert native[1] % 512 == 0
    assert pool.allocate(0).native is None
    assert memory[600:600].native is None
    assert memory[512:600][88:].native is None


@pytest.mark.parametrize("device", ["cpu", "shared"])
def test_no_bytes_have_no_native_object_on_any_device(device: str) -> None:
    with Pool(device) as pool:
        memory = pool.allocate(1000)

        assert memory.native is not None
        assert memory[8:8].native is None
        assert pool.allocate(0).native is None


def test_memory_without_bytes_copies_nothing(pool: Pool, device: ByteDevice) -> None:
    empty = pool.allocate(0)

    empty.fill(1)
    empty.copy_from(b"")
    empty.resize(0)
    pool.allocate(4).copy_from(empty)

    assert empty.tobytes() == b""
    assert device.log == []


@pytest.mark.parametrize(
    "use",
    [
        lambda memory: memory.tobytes(),
        lambda memory: memory.copy_from(b"1"),
        lambda memory: memory.fill(1),
        lambda memory: memory.resize(2),
        lambda memory: memory.native,
    ],
    ids=["tobytes", "copy_from", "fill", "resize", "native"],
)
@pytest.mark.parametrize("nbytes", [0, 8])
def test_freed_memory_is_not_used(pool: Pool, use: object, nbytes: int) -> None:
    memory = pool.allocate(nbytes)
    memory.free()

    with pytest.raises(FreedMemoryError):
        use(memory)  # type: ignore[operator]  # one of the functions above


def test_a_larger_source_is_refused(pool: Pool, device: ByteDevice) -> None:
    with pytest.raises(ValueError, match="cannot copy 5 bytes into 4"):
        pool.allocate(4).copy_from(b"12345")
    with pytest.raises(ValueError, match="read-only"):
        pool.allocate(4).copy_to(b"1234")

    assert device.log == []


def test_a_device_that_cannot_copy_is_refused() -> None:
    memory = Pool(ByteDevice(Capability.FILL)).allocate(4)
    memory.fill(1)

    with pytest.raises(MissingCapabilityError) as caught:
        memory.copy_from(b"1234")

    assert str(caught.value) == (
        "bytes has no host access, which a view needs. "
        "Try: a device that the CPU can reach, such as 'cpu'"
    )


def test_a_device_without_streams_queues_nothing() -> None:
    memory = Pool(ByteDevice(Capability.COPY)).allocate(4)

    with pytest.raises(MissingCapabilityError) as caught:
        memory.copy_from(b"1234", stream="s")

    assert str(caught.value) == "bytes has no streams. Try: copy without stream="


def test_work_without_a_stream_is_done_in_the_owners(
    pool: Pool, device: ByteDevice, owners: Owners
) -> None:
    memory = pool.allocate(4)
    owners.of[id(memory)] = "s"

    memory.fill(1)
    memory.copy_from(b"1234")
    memory.tobytes()

    waits = [("record", "s"), ("synchronize", "event of s")]
    assert device.log == [
        ("fill", "s"),
        *waits,
        ("from host", "s"),
        *waits,
        ("to host", "s"),
        *waits,
    ]
    assert owners.recorded == []


@pytest.mark.parametrize(
    ("writes", "reads", "log"),
    [
        (
            "w",
            "r",
            [
                ("record", "r"),
                ("wait", "w", "event of r"),
                ("inside", "w"),
                ("record", "w"),
                ("synchronize", "event of w"),
            ],
        ),
        ("s", "s", [("inside", "s"), ("record", "s"), ("synchronize", "event of s")]),
        (
            None,
            "r",
            [("record", "r"), ("synchronize", "event of r"), ("inside", None)],
        ),
        (
            "w",
            None,
            [
                ("record", None),
                ("wait", "w", "event of None"),
                ("inside", "w"),
                ("record", "w"),
                ("synchronize", "event of w"),
            ],
        ),
    ],
)
def test_a_copy_between_owners_follows_the_work_of_both(
    pool: Pool,
    device: ByteDevice,
    owners: Owners,
    writes: object,
    reads: object,
    log: list[object],
) -> None:
    source, destination = pool.allocate(4), pool.allocate(4)
    owners.of = {id(source): reads, id(destination): writes}

    madl.copy(destination, source)

    assert device.log == log


def test_a_copy_with_a_stream_is_only_queued_and_recorded_on_both_sides(
    pool: Pool, device: ByteDevice, owners: Owners
) -> None:
    source, destination = pool.allocate(4), pool.allocate(4)

    madl.copy(destination, source, stream="s")
    destination.copy_from(b"1234", stream="s")
    found = bytearray(4)
    destination.copy_to(found, stream="s")

    assert device.log == [("inside", "s"), ("from host", "s"), ("to host", "s")]
    assert owners.recorded == [
        (id(destination), "s"),
        (id(source), "s"),
        (id(destination), "s"),
        (id(destination), "s"),
    ]


def test_a_stream_goes_through_one_device_only(pool: Pool, owners: Owners) -> None:
    other = Pool(ByteDevice(device="others")).allocate(4)

    with pytest.raises(MissingCapabilityError) as caught:
        madl.copy(pool.allocate(4), other, stream="s")

    assert str(caught.value) == (
        "others has no streams that bytes shares. Try: copy without stream="
    )
    assert owners.recorded == []


def test_a_copy_in_a_stream_does_not_overlap(pool: Pool, owners: Owners) -> None:
    memory = pool.allocate(8)

    with pytest.raises(ValueError, match="must not overlap itself") as caught:
        madl.copy(memory[1:5], memory[0:4], stream="s")

    assert str(caught.value) == (
        "a copy in a stream must not overlap itself; copy without stream="
    )
    assert owners.recorded == []


def test_a_copy_of_nothing_may_be_queued() -> None:
    capabilities = Capability.COPY | Capability.STREAM_ORDERED
    device = madl.testing.FakeBackend(capabilities=capabilities)
    memory, stream = Pool(device).allocate(0), device.make_stream()

    memory.copy_from(b"", stream=stream)
    memory.copy_to(bytearray(), stream=stream)

    assert stream.queued_count == 0
