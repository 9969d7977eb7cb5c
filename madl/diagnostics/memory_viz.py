"""Export for PyTorch's viewer, https://pytorch.org/memory_viz.

The viewer reads a pickle of plain containers, of protocol 4 at most. It adds up block
sizes to find where each starts, so the blocks of a segment leave no gap; and it replays
the events backwards from the final state, so that both have to agree.
"""

import os
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

from madl.backends.sim import ADDRESSES_NBYTES, SimBackend
from madl.diagnostics.replay import addressable, placing
from madl.diagnostics.torch.snapshot import (
    TorchBlock,
    TorchEvent,
    TorchSegment,
    TorchSnapshot,
)
from madl.diagnostics.traces.trace import Allocate, Free, Trace
from madl.diagnostics.traces.writer import write_whole
from madl.hotpath import Memory, place_of
from madl.pool import Pool
from madl.pool.allocate import parts_of
from madl.pool.stats import ArenaSnapshot, BlockSnapshot, PoolSnapshot
from madl.stacks import Stack

_PROTOCOL = 4
_MADE_UP_ADDRESSES = 1 << 48
"""From one arena to the next, where the device has no addresses."""


class _Event(NamedTuple):
    action: str
    address: int
    nbytes: int
    stream: int = 0
    stack: Stack = ()
    tag: str | None = None

    def as_dict(self, time_us: int) -> dict[str, Any]:
        return {
            "action": self.action,
            "addr": self.address,
            "size": self.nbytes,
            "stream": self.stream,
            "time_us": time_us,
            "frames": _frames(self.stack, self.tag),
        }


def export_snapshot(snapshot: PoolSnapshot, path: str | os.PathLike[str]) -> None:
    """Write a snapshot for PyTorch's viewer; an existing file is replaced.

    Live blocks seem to have been allocated in the order in which they lie.

    Raises:
        OSError: The file cannot be written; what was there is as before.
    """
    events = [
        _Event("alloc", base + one.offset, one.capacity_nbytes, 0, one.stack, one.tag)
        for base, arena in _placed(snapshot)
        for one in arena.blocks
        if one.state == "live"
    ]
    _write(snapshot, events, path)


def export_torch_snapshot(
    snapshot: TorchSnapshot, path: str | os.PathLike[str]
) -> None:
    """Write what any version of PyTorch wrote for its viewer, as the latest one does.

    A stack becomes one frame: the line of the program. An existing file is replaced.

    Raises:
        OSError: The file cannot be written; what was there is as before.
    """
    segments = [
        _segment_dict(one, [_torch_block(block) for block in one.blocks])
        for one in snapshot.segments
    ]
    traces = [
        [_torch_event(event, time) for time, event in enumerate(events)]
        for events in snapshot.events
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": snapshot.settings.as_text()}
    _write_content(segments, traces, settings, path)


def _torch_block(block: TorchBlock) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.nbytes,
        "requested_size": block.requested_nbytes if block.is_live else 0,
        "state": "active_allocated" if block.is_live else "inactive",
        "frames": _frames((), block.place),
    }


def _torch_event(event: TorchEvent, time_us: int) -> dict[str, Any]:
    action, address, nbytes, stream, place, left = event
    entry = _Event(action, address, nbytes, stream, (), place).as_dict(time_us)
    if action == "oom":
        entry["device_free"] = left
        del entry["addr"]
    return entry


def export_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write what a pool makes of a trace for PyTorch's viewer.

    The pool, of device ``sim``, recycles no page and is never short: what it has once
    taken it keeps, so that every event lies in a segment. An event takes a microsecond.

    Raises:
        OSError: The file cannot be written; what was there is as before.
        OutOfMemoryError: The trace needs more than any process has addresses for.
        FileFormatError: It asks for more than this machine can address.
    """
    device = SimBackend(total_nbytes=2 * ADDRESSES_NBYTES)
    with Pool(device, recycle=False, pooling=True) as pool:
        placed: list[tuple[object, int, int]] = [(None, 0, 0)] * trace.allocations
        held: list[Memory | None] = [None] * trace.allocations
        with addressable(trace), placing(trace, pool):
            for operation in trace.operations:
                if operation >= 0:
                    memory = pool.allocate(trace.nbytes_of[operation])
                    placed[operation] = place_of(memory) or (None, 0, 0)
                    held[operation] = memory
                    del memory  # it would pin the block beyond its free
                else:
                    held[~operation] = None
        snapshot = pool.snapshot()
        arenas: list[object] = [*parts_of(pool).growth.all_arenas()]  # as in it
        held.clear()
    base_of = dict(zip(arenas, (base for base, _ in _placed(snapshot)), strict=True))
    events: list[_Event] = []
    allocated: dict[int, _Event] = {}
    for one in trace.events():
        if isinstance(one, Allocate):
            arena, offset, capacity = placed[one.id]
            if arena is not None:  # else of zero bytes
                at = base_of[arena] + offset
                event = _Event("alloc", at, capacity, one.stream, one.stack, one.tag)
                events.append(event)
                allocated[one.id] = event
        elif isinstance(one, Free) and one.id in allocated:
            event = allocated.pop(one.id)
            for action in ("free_requested", "free_completed"):
                events.append(event._replace(action=action))
    _write(snapshot, events, path)


def _write(
    snapshot: PoolSnapshot, events: list[_Event], path: str | os.PathLike[str]
) -> None:
    latest = {event.address: event for event in events if event.action == "alloc"}
    segments = [
        _segment(base, start, nbytes, arena, latest)
        for base, arena in _placed(snapshot)
        for start, nbytes in arena.committed_runs
    ]
    taken = [_Event("segment_alloc", s["address"], s["total_size"]) for s in segments]
    trace = [event.as_dict(time) for time, event in enumerate(taken + events)]
    _write_content(segments, [trace], {"madl": snapshot.device}, path)


def _write_content(
    segments: list[dict[str, Any]],
    traces: list[list[dict[str, Any]]],
    settings: dict[str, str],
    path: str | os.PathLike[str],
) -> None:
    content = {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": settings,
        "external_annotations": [],
    }
    write_whole(path, pickle.dumps(content, protocol=_PROTOCOL))


def _placed(snapshot: PoolSnapshot) -> Iterator[tuple[int, ArenaSnapshot]]:
    """Yield each arena with an address, its own or one that no other uses."""
    for index, arena in enumerate(snapshot.arenas, 1):
        base = index * _MADE_UP_ADDRESSES if arena.address is None else arena.address
        yield base, arena


def _segment(
    base: int, start: int, nbytes: int, arena: ArenaSnapshot, latest: dict[int, _Event]
) -> dict[str, Any]:
    """Return a committed run; only free blocks reach beyond it, and are cut."""
    blocks = []
    for block in arena.blocks:
        first = max(block.offset, start)
        stop = min(block.offset + block.capacity_nbytes, start + nbytes)
        if first < stop:
            blocks.append(_block(base + first, stop - first, block, latest))
    return _segment_dict(TorchSegment(0, base + start, nbytes, 0, ()), blocks)


def _segment_dict(
    segment: TorchSegment, blocks: list[dict[str, Any]]
) -> dict[str, Any]:
    live = [block for block in blocks if block["state"] == "active_allocated"]
    live_nbytes = sum(block["size"] for block in live)
    return {
        "device": segment.device,
        "address": segment.address,
        "total_size": segment.nbytes,
        "allocated_size": live_nbytes,
        "active_size": live_nbytes,
        "requested_size": sum(block["requested_size"] for block in live),
        "stream": segment.stream,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _block(
    address: int, nbytes: int, block: BlockSnapshot, latest: dict[int, _Event]
) -> dict[str, Any]:
    is_live = block.state == "live"
    event = latest.get(address) if is_live else None
    return {
        "address": address,
        "size": nbytes,
        "requested_size": block.nbytes if is_live else 0,
        "state": "active_allocated" if is_live else "inactive",
        "frames": [] if event is None else _frames(event.stack, event.tag),
    }


def _frames(stack: Stack, tag: str | None) -> list[dict[str, Any]]:
    """Return a stack as the viewer knows it; a tag is its innermost frame."""
    frames = [] if tag is None else [{"filename": "tag", "line": 0, "name": tag}]
    frames += [
        {"filename": line.filename, "line": line.number, "name": line.function}
        for line in stack
    ]
    return frames
