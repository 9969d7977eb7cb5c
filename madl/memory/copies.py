"""Copies and fills of device memory: with the host, within and between devices.

Work without a stream is queued in the stream that owns the memory, after all that is
queued there already, and is done on return.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, cast

from madl.backends import registry
from madl.backends.protocol import (
    Backend,
    Capability,
    CopyBackend,
    FillBackend,
    PeerCopyBackend,
    Reservation,
    StreamOrderedBackend,
)
from madl.errors import MissingCapabilityError
from madl.hotpath import Memory, pool_of
from madl.memory.host_arrays import bytes_of_array
from madl.memory.place import (
    Part,
    backend_of,
    is_plain_host,
    locate,
    pin,
    reserved_place,
)
from madl.memory.staging import open_stage
from madl.memory.views import view

STAGE_NBYTES = 8 << 20
"""What goes from one device to another passes through so much host memory."""


class Foreign:
    """An array of another library as the holder of a part, in place of a ``Memory``."""

    def __init__(self, array: object, stream: object) -> None:
        self.array = array  # owns the bytes, so it has to outlive the copy
        self.stream = stream


def copy(destination: Any, source: Any, *, stream: object = None) -> None:  # noqa: ANN401  # any buffer or Memory
    """Copy the bytes of ``source`` to the start of ``destination``.

    Args:
        destination: A ``Memory``, or an array of any library: in host memory with a
            buffer, ``__array_interface__`` or ``__dlpack__``, on a CUDA device with
            ``__cuda_array_interface__``, or of PyOpenCL. Writable, without gaps.
        source: The same; it may be read-only.
        stream: Where the copy is queued. Without one it is complete on return.

    Raises:
        ValueError: ``source`` is larger, or ``destination`` is read-only.
        NotContiguousError: One of them has gaps.
        MissingCapabilityError: A stream was given for host memory, or for two devices.

    Complexity: O(bytes). Overlapping ranges are copied as if through a third place.
    Between two devices the bytes go through the host.
    """
    of, to = _side(source), _side(destination)
    if of.nbytes > to.nbytes:
        raise ValueError(
            f"cannot copy {of.nbytes} bytes into {to.nbytes}; "
            "copy a slice of the source, or allocate a larger destination"
        )
    if to.readonly:
        raise ValueError("destination must be writable, got a read-only buffer")
    if stream is not None:
        _check_stream(destination, source, of, to)
        for side in (destination, source):
            if isinstance(side, Memory) and _has_streams(side):
                side.record_stream(stream)
    if isinstance(to, Part):
        _write(to.cut(0, of.nbytes), of, stream)
    else:
        _read(to[: of.nbytes], of, stream)


def _has_streams(memory: Memory) -> bool:
    # Host memory that the device reads is the caller's to keep, as bytes are.
    return Capability.STREAM_ORDERED in pool_of(memory).capabilities


def copy_block(to: Memory, of: Memory, nbytes: int) -> None:
    """Copy the start of a memory to another one of its pool."""
    use = "resize()"
    _write(_part(to, use).cut(0, nbytes), _part(of, use).cut(0, nbytes), None)


def fill(memory: Memory, value: int) -> None:
    """Set every byte of a memory of a device with FILL."""
    part = _part(memory, "fill()")
    stream = memory.stream
    backend = cast("FillBackend", part.backend)
    backend.fill(part.reservation, part.offset, part.nbytes, value, stream=stream)
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
        return _part_of_array(side) or bytes_of_array(side)
    if is_plain_host(side):
        return view(side)
    if not side.nbytes:
        locate(side, "a view")
        return memoryview(bytearray())
    if pool_of(side).capabilities & Capability.COPY:
        return _part(side, "a copy")
    return view(side)


def _part_of_array(array: object) -> Part | None:
    place = registry.wrap_array(array)
    if place is None:
        return None
    return Part(
        Foreign(array, place.stream),
        place.backend,
        place.reservation,
        place.offset,
        place.nbytes,
        place.is_readonly,
    )


def _part(memory: Memory, use: str) -> Part:
    # Pinned before it is located: a resize by another thread or a signal handler in
    # between would move the block, and the copy would use the old place.
    kept = pin(memory, use)
    arena, offset = locate(memory, use)
    assert arena is not None, "only memory without bytes has no arena"
    backend = backend_of(memory)
    place = reserved_place(arena, offset)
    return Part(memory, backend, *place, memory.nbytes, kept=kept)


def _check_stream(destination: Any, source: Any, of: Any, to: Any) -> None:  # noqa: ANN401  # any buffer, Memory or side
    """Raise where a copy cannot be queued in a stream."""
    parts = [side for side in (of, to) if isinstance(side, Part)]
    for part in parts:
        if not part.backend.capabilities & Capability.STREAM_ORDERED:
            raise _no_streams(part.holder)
    if not parts:
        if any(map(_is_nothing_on_streams, (destination, source))):
            return
        raise _no_streams(destination if isinstance(destination, Memory) else source)
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
    return isinstance(side, Memory) and not side.nbytes and _has_streams(side)


def _share_streams(one: Backend, other: Backend) -> bool:
    """Return whether a stream runs on both."""
    if one == other:
        return True
    if Capability.PEER_COPY not in one.capabilities:
        return False
    return cast("PeerCopyBackend", one).shares_streams(other)


def _no_streams(side: Any) -> MissingCapabilityError:  # noqa: ANN401  # any buffer or Memory
    """Return the error for a stream where there are none."""
    device = pool_of(side).device if isinstance(side, Memory) else "cpu"
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
    elif of.backend == to.backend and not _overlap(of, to):
        _copy_inside(to, of, stream)
    elif _is_reached(to, of) and not _overlap(of, to):
        _copy_across(to, of, stream)
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


@contextlib.contextmanager
def _stream_of(part: Part, stream: object) -> Iterator[object]:
    """Yield where work is queued; without a stream in the part's own, and wait."""
    where = part.holder.stream if stream is None else stream
    yield where
    if stream is None:
        _finish(part.backend, where)


def _copy_to_host(to: memoryview, of: Part, stream: object) -> None:
    with _stream_of(of, stream) as where:
        stage = open_stage(of.backend, to, where)
        if stage is None:
            backend = cast("CopyBackend", of.backend)
            backend.copy_to_host(of.reservation, of.offset, to, stream=where)
        else:
            with stage:
                stage.read(to, of)


def _copy_from_host(to: Part, of: memoryview, stream: object) -> None:
    with _stream_of(to, stream) as where:
        stage = open_stage(to.backend, of, where)
        if stage is None:
            backend = cast("CopyBackend", to.backend)
            backend.copy_from_host(to.reservation, to.offset, of, stream=where)
        else:
            with stage:
                stage.write(to, of)


def _copy_inside(to: Part, of: Part, stream: object) -> None:
    if stream is None:
        _join(to, of)
    # The backend of a foreign array takes any address of the device; that of a pool
    # only those of its own reservations.
    backend = of.backend if isinstance(of.holder, Foreign) else to.backend
    places = of.reservation, of.offset, to.reservation, to.offset, to.nbytes
    with _stream_of(to, stream) as where:
        cast("CopyBackend", backend).copy_inside(*places, stream=where)


def _is_reached(to: Part, of: Part) -> bool:
    """Return whether the destination's backend copies from the source's."""
    if Capability.PEER_COPY not in to.backend.capabilities:
        return False
    return cast("PeerCopyBackend", to.backend).reaches(of.backend)


def _copy_across(to: Part, of: Part, stream: object) -> None:
    """Copy from another backend, behind what is queued for both ranges.

    Without a stream that runs on both, the host waits for the source.
    """
    if stream is None and Capability.STREAM_ORDERED in of.backend.capabilities:
        there = cast("StreamOrderedBackend", of.backend)
        there.synchronize(there.record(of.holder.stream))
    places = of.reservation, of.offset, to.reservation, to.offset, to.nbytes
    with _stream_of(to, stream) as where:
        peer = cast("PeerCopyBackend", to.backend)
        peer.copy_from_device(of.backend, *places, stream=where)


def _join(to: Part, of: Part) -> None:
    """Let the destination's stream wait for all that is queued for the source."""
    writes, reads = to.holder.stream, of.holder.stream
    if writes is None:
        _finish(to.backend, reads)
        return
    here = cast("StreamOrderedBackend", to.backend)
    there = cast("StreamOrderedBackend", of.backend)
    if here.stream_key(writes) != there.stream_key(reads):
        here.wait(writes, there.record(reads))


def _finish(backend: Backend, stream: object) -> None:
    if stream is not None:
        ordered = cast("StreamOrderedBackend", backend)
        ordered.synchronize(ordered.record(stream))


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
