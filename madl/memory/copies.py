"""Copies and fills of memory that the CPU cannot reach, or not on its own.

Work without a stream is queued in the stream that owns the memory, after all that is
queued there already, and has been done on return.
"""

from collections.abc import Callable, Iterator
from typing import Any

from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability, Reservation
from madl.errors import MissingCapabilityError
from madl.hotpath import Memory
from madl.memory.foreign import Foreign, is_on_device, part_of_array
from madl.memory.host_arrays import bytes_of_array
from madl.memory.pin import hold
from madl.memory.place import Part, is_plain_host, locate, reserved_place
from madl.memory.staging import open_stage
from madl.memory.views import view

STAGE_NBYTES = 8 << 20
"""What goes from one device to another passes through so much host memory."""

_FOR_HOST = Capability.HOST_ACCESS | Capability.PINNED | Capability.MANAGED


def bytes_of(source: Any) -> memoryview:  # noqa: ANN401  # any buffer or Memory
    """Return the bytes of a ``Memory`` or of an array in host memory."""
    return view(source) if isinstance(source, Memory) else bytes_of_array(source)


def check_room(of: int, to: int, *, is_readonly: bool) -> None:
    """Raise where so many bytes cannot be copied into so many."""
    if of > to:
        raise ValueError(
            f"cannot copy {of} bytes into {to}; "
            "copy a slice of the source, or allocate a larger destination"
        )
    if is_readonly:
        raise ValueError("destination must be writable, got a read-only buffer")


def copy(destination: Any, source: Any, stream: object) -> None:  # noqa: ANN401  # any buffer or Memory
    """Copy as ``memory.copy`` does, where one side is on a device."""
    of, to = _side(source), _side(destination)
    is_readonly = to.readonly if isinstance(to, memoryview) else _is_readonly(to)
    check_room(of.nbytes, to.nbytes, is_readonly=is_readonly)
    if stream is not None:
        _check_stream(destination, source, of, to)
        for side in (destination, source):
            if isinstance(side, Memory) and _has_streams(side):
                side.record_stream(stream)
    if isinstance(to, Part):
        _write(to.cut(0, of.nbytes), of, stream)
    else:
        _read(to[: of.nbytes], of, stream)


def _is_readonly(part: Part) -> bool:
    return isinstance(part.holder, Foreign) and part.holder.is_readonly


def _has_streams(memory: Memory) -> bool:
    # Host memory that the device reads is the caller's to keep, as bytes are.
    return Capability.STREAM_ORDERED in memory._pool.capabilities


def copy_block(to: Memory, of: Memory, nbytes: int) -> None:
    """Copy the start of a memory to another one of its pool."""
    use = "resize()"
    _write(_part(to, use).cut(0, nbytes), _part(of, use).cut(0, nbytes), None)


def fill(memory: Memory, value: int) -> None:
    """Set every byte of a memory of a device with FILL."""
    part = _part(memory, "fill()")
    stream = memory.stream
    part.backend.fill(part.reservation, part.offset, part.nbytes, value, stream=stream)
    _finish(part.backend, stream)


def tobytes(memory: Memory) -> bytes:
    """Return a copy of the content."""
    side = _side(memory)
    if isinstance(side, memoryview):
        return bytes(side)
    content = bytearray(side.nbytes)
    _read(memoryview(content), side, None)
    return bytes(content)


def _side(side: Any) -> "Part | memoryview":  # noqa: ANN401  # any buffer or Memory
    """Return what copies read or write: bytes, where only the CPU can.

    Memory that both reach is copied by the device, behind what is queued there.
    """
    if not isinstance(side, Memory):
        return part_of_array(side) if is_on_device(side) else bytes_of(side)
    if is_plain_host(side):
        return bytes_of(side)
    if not side._nbytes:
        locate(side, "a view")
        return memoryview(bytearray())
    if side._pool.capabilities & Capability.COPY:
        return _part(side, "a copy")
    return bytes_of(side)


def _part(memory: Memory, use: str) -> Part:
    kept = hold(memory, use)  # first: from now on it stays where it is
    arena, offset = locate(memory, use)
    assert arena is not None, "only memory without bytes has no arena"
    backend, place = memory._pool._backend, reserved_place(arena, offset)
    return Part(memory, backend, *place, memory._nbytes, kept)


def _check_stream(destination: Any, source: Any, of: Any, to: Any) -> None:  # noqa: ANN401  # any buffer, Memory or side
    """Raise where a copy cannot be queued in a stream."""
    parts = [side for side in (of, to) if isinstance(side, Part)]
    for part in parts:
        if not part.backend.capabilities & Capability.STREAM_ORDERED:
            raise no_streams(part.holder)
    if not parts:
        if any(map(_is_nothing_on_streams, (destination, source))):
            return
        raise no_streams(destination if isinstance(destination, Memory) else source)
    if len(parts) == 2 and not _share_streams(parts[0].backend, parts[1].backend):
        raise MissingCapabilityError(
            parts[0].backend.device,
            f"streams that {parts[1].backend.device} shares",
            "copy without stream=",
        )
    if _overlap(of, to):
        raise ValueError(
            "a copy in a stream must not overlap itself; copy without stream="
        )


def _is_nothing_on_streams(side: Any) -> bool:  # noqa: ANN401  # any buffer or Memory
    """Return whether a side is no bytes of a device where they could be queued."""
    return isinstance(side, Memory) and not side._nbytes and _has_streams(side)


def _share_streams(one: CountedBackend, other: CountedBackend) -> bool:
    """Return whether a stream runs on both."""
    shares = getattr(one.inner, "shares_streams", None)
    known = shares is not None and shares(other.inner)
    return bool(known or one.inner == other.inner)


def no_streams(side: Any) -> MissingCapabilityError:  # noqa: ANN401  # any buffer or Memory
    """Return the error for a stream where there are none."""
    device = side._pool.device if isinstance(side, Memory) else "cpu"
    return MissingCapabilityError(device, "streams", "copy without stream=")


def _read(to: memoryview, of: "Part | memoryview", stream: object) -> None:
    if isinstance(of, memoryview):
        to[:] = of
    elif of.nbytes:
        _copy_to_host(to, of, stream)


def _write(to: Part, of: "Part | memoryview", stream: object) -> None:
    if not to.nbytes:
        return
    if isinstance(of, memoryview):
        _copy_from_host(to, of, stream)
    elif of.backend.inner == to.backend.inner and not _overlap(of, to):
        _copy_inside(to, of, stream)
    elif (across := _way_across(to, of)) is not None:
        _copy_across(across, to, of, stream)
    else:
        stage = memoryview(bytearray(min(of.nbytes, STAGE_NBYTES)))
        for start, stop in _pieces(of.nbytes, backwards=_start(of) < _start(to)):
            staged = stage[: stop - start]
            _copy_to_host(staged, of.cut(start, stop), None)
            _copy_from_host(to.cut(start, stop), staged, None)


def _pieces(nbytes: int, *, backwards: bool) -> Iterator[tuple[int, int]]:
    """Yield ranges in the order in which a move to where they overlap reads them."""
    starts = range(0, nbytes, STAGE_NBYTES)
    for start in reversed(starts) if backwards else starts:
        yield start, min(start + STAGE_NBYTES, nbytes)


def _copy_to_host(to: memoryview, of: Part, stream: object) -> None:
    where = of.holder.stream if stream is None else stream
    stage = open_stage(of.backend, to, where)
    if stage is None:
        of.backend.copy_to_host(of.reservation, of.offset, to, stream=where)
    else:
        with stage:
            stage.read(to, of)
    if stream is None:
        _finish(of.backend, where)


def _copy_from_host(to: Part, of: memoryview, stream: object) -> None:
    where = to.holder.stream if stream is None else stream
    stage = open_stage(to.backend, of, where)
    if stage is None:
        to.backend.copy_from_host(to.reservation, to.offset, of, stream=where)
    else:
        with stage:
            stage.write(to, of)
    if stream is None:
        _finish(to.backend, where)


def _copy_inside(to: Part, of: Part, stream: object) -> None:
    where = to.holder.stream if stream is None else stream
    if stream is None:
        where = _join(to, of)
    # What reaches lent memory reaches all of the device.
    backend = of.backend if isinstance(of.holder, Foreign) else to.backend
    backend.copy_inside(
        of.reservation, of.offset, to.reservation, to.offset, to.nbytes, stream=where
    )
    if stream is None:
        _finish(to.backend, where)


def _way_across(to: Part, of: Part) -> Callable[..., None] | None:
    """Return the call that copies from another backend, where this one has it.

    Without a word from them it is for two devices of one class, and for what only the
    devices reach: whether one of them reaches host memory that was made for the other
    depends on the driver.
    """
    there, here = of.backend, to.backend
    found: Callable[..., None] | None = getattr(here.inner, "copy_from_device", None)
    reaches = getattr(here.inner, "reaches", None)
    if reaches is not None and reaches(there.inner):
        return None if _overlap(of, to) else found
    if here.device == there.device or type(here.inner) is not type(there.inner):
        return None
    if (here.capabilities | there.capabilities) & _FOR_HOST:
        return None
    return found


def _copy_across(
    copy_from_device: Callable[..., None], to: Part, of: Part, stream: object
) -> None:
    """Copy from another backend, behind what is queued for both ranges.

    Without a stream that runs on both, the host waits for the source.
    """
    where = to.holder.stream if stream is None else stream
    if stream is None and Capability.STREAM_ORDERED in of.backend.capabilities:
        of.backend.synchronize(of.backend.record(of.holder.stream))
    copy_from_device(
        of.backend.inner,
        of.reservation,
        of.offset,
        to.reservation,
        to.offset,
        to.nbytes,
        stream=where,
    )
    if stream is None:
        _finish(to.backend, where)


def _join(to: Part, of: Part) -> object:
    """Return a stream that runs after all that is queued for both ranges."""
    writes, reads = to.holder.stream, of.holder.stream
    if writes is None:
        _finish(to.backend, reads)
    elif to.backend.stream_key(writes) != of.backend.stream_key(reads):
        to.backend.wait(writes, of.backend.record(reads))
    return writes


def _finish(backend: CountedBackend, stream: object) -> None:
    if stream is not None:
        backend.synchronize(backend.record(stream))


def _overlap(of: object, to: object) -> bool:
    return (
        isinstance(of, Part)
        and isinstance(to, Part)
        and _is_comparable(of.reservation, to.reservation)
        and _start(of) < _start(to) + to.nbytes
        and _start(to) < _start(of) + of.nbytes
    )


def _is_comparable(of: Reservation, to: Reservation) -> bool:
    """Whether places in two reservations of a device are places of one space."""
    return of.native is to.native or None not in (of.address, to.address)


def _start(part: Part) -> int:
    return (part.reservation.address or 0) + part.offset
