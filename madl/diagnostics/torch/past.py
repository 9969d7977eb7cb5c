"""Reconstruct the history and the trace of a device from a PyTorch snapshot.

A snapshot shows the end, and the last events before it: a ring buffer forgets the
rest. So the events are taken back one by one, which gives what was there when they
begin. That is allocated first, in order of address; then the events are done again.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from madl.diagnostics.history import OUT_OF_MEMORY, BlockTable, History, Moment
from madl.diagnostics.runs.map import RangeLog
from madl.diagnostics.torch.kinds import whole_events
from madl.diagnostics.torch.models.settings import BLOCK_NBYTES
from madl.diagnostics.torch.snapshot import (
    TorchBlock,
    TorchEvent,
    TorchSegment,
    TorchSnapshot,
)
from madl.diagnostics.traces.builder import TraceBuilder
from madl.diagnostics.traces.lines import RefusedError
from madl.diagnostics.traces.trace import Trace
from madl.errors import FileFormatError
from madl.sizes import align_up, format_nbytes

TAKES = {"segment_alloc", "segment_map"}
GIVES_BACK = {"segment_free", "segment_unmap"}
_NEVER = 1 << 62
"""After all moments there may be: the stop of a block until it is freed."""
ADDRESS_LIMIT = 1 << 62
"""Addresses that are shown as they are lie below it: their sums fit 64 bits."""
TOTAL_LIMIT_NBYTES = 1 << 62
"""Of all requests together, so that no sum of them leaves 64 bits."""


class TorchOutOfMemory(NamedTuple):
    """A request that PyTorch could not place."""

    moment: int
    """With what PyTorch gave back or took for the request, which failed all the same.

    The first moment after the request in the trace; it is not live in the history.
    """
    allocation: int
    """Its id in the trace."""
    requested_nbytes: int
    device_free_nbytes: int | None
    """What the device had left; ``None`` where the snapshot does not say."""
    place: str | None


@dataclass(frozen=True)
class TorchPast:
    """What is known of one device."""

    history: History
    trace: Trace
    """A request that failed is an allocation in it, freed by the next event."""
    failures: tuple[TorchOutOfMemory, ...]
    has_events: bool


def torch_past(snapshot: TorchSnapshot, device: int) -> TorchPast:
    """Return the past of a device, as far as the snapshot tells.

    Raises:
        FileFormatError: Its stacks name more places than a trace may have tags, or
            more is asked for than can be added up.
    """
    try:
        return _Past(snapshot, device).tell()
    except RefusedError as bad:
        raise FileFormatError(snapshot.path, 0, str(bad)) from None


class _Past:
    """A past under construction; moments count the operations of the trace."""

    def __init__(self, snapshot: TorchSnapshot, device: int) -> None:
        self._name = snapshot.name
        self._device = device
        self._failed_too = [
            other
            for other in snapshot.devices
            if other != device and snapshot.ran_out(other)
        ]
        segments = [one for one in snapshot.segments if one.device == device]
        events = snapshot.events_of(device)
        self._lowest = _lowest(segments, events)
        self._segments = [_moved(one, self._lowest) for one in segments]
        if self._lowest:
            events = tuple(
                one._replace(address=one.address - self._lowest) for one in events
            )
        self._events, self._notes = whole_events(events, self._segments)
        self._at_end = {
            block.address: (block, segment.stream)
            for segment in self._segments
            for block in segment.blocks
            if block.is_live
        }
        self._builder = TraceBuilder()
        self._log = RangeLog()
        self._columns = tuple(array("q") for _ in BlockTable._fields)
        self._held: dict[int, tuple[int, int]] = {}
        """Row and allocation of what is live, by its address."""
        self._places: dict[str | None, int] = {None: 0}
        self._failures: list[TorchOutOfMemory] = []
        self._contradictions = 0
        self._last_moment = 0

    def tell(self) -> TorchPast:
        self._begin()
        for event in self._events:
            self._do(event)
        trace = self._builder.finish(self._name)
        if (total := sum(trace.nbytes_of)) >= TOTAL_LIMIT_NBYTES:
            raise RefusedError(
                f"all requests together must be below {TOTAL_LIMIT_NBYTES} bytes, "
                f"got {total}"
            )
        self._last_moment = max(self._last_moment, len(trace))
        history, failures = self._history(trace), tuple(self._failures)
        return TorchPast(history, trace, failures, has_events=bool(self._events))

    def _begin(self) -> None:
        """Put in place what was there before the events; say how much that was."""
        now = [(one.address, one.nbytes) for one in self._segments]
        for address, nbytes in _first_ranges(now, self._events):
            self._log.add(address, nbytes, 0)
        first = _first_blocks(self._events, self._at_end)
        for _, event in sorted(first.items()):
            self._allocate(event)
        if not self._events or not first:
            return
        self._builder.mark("the history begins")
        held = format_nbytes(sum(event.nbytes for event in first.values()))
        self._notes.append(
            f"{len(first):,} blocks ({held}) are older than the history, which began "
            "later or lost its start to newer events. They come first, in order of "
            "address."
        )

    def _do(self, event: TorchEvent) -> None:
        if event.action == "alloc":
            self._allocate(event)
        elif event.action == "free_completed":
            self._free(event.address)
        elif event.action == "oom":
            self._fail(event)
        else:
            change = self._log.add if event.action in TAKES else self._log.remove
            # With the operation that comes next, for which it happens.
            self._last_moment = len(self._builder.operations) + 1
            change(event.address, event.nbytes, self._last_moment)

    def _allocate(self, event: TorchEvent) -> None:
        if event.address in self._held:
            self._contradictions += 1
            self._free(event.address)
        tag = None if event.place is None else " ".join(event.place.split())
        allocation = self._builder.allocate(event.nbytes, stream=event.stream, tag=tag)
        self._held[event.address] = (len(self._columns[0]), allocation)
        moment = len(self._builder.operations)
        place = self._places.setdefault(event.place, len(self._places))
        capacity = self._capacity(event)
        row = (event.address, event.nbytes, capacity, moment, _NEVER, place, place)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def _free(self, address: int) -> None:
        held = self._held.pop(address, None)
        if held is None:
            self._contradictions += 1
            return
        row, allocation = held
        self._builder.free(allocation)
        self._columns[4][row] = len(self._builder.operations)

    def _fail(self, event: TorchEvent) -> None:
        self._builder.mark(OUT_OF_MEMORY)
        refused = self._builder.allocate(event.nbytes, stream=event.stream)
        # Before it gives up PyTorch releases what it has cached, and only then looks
        # how much the device has left: segments go with the request, as for any other.
        failure = TorchOutOfMemory(
            len(self._builder.operations),
            refused,
            event.nbytes,
            event.device_free_nbytes,
            event.place,
        )
        self._failures.append(failure)
        self._builder.free(refused)

    def _capacity(self, event: TorchEvent) -> int:
        """Return what the block takes; exactly, if it is there at the end."""
        block, _ = self._at_end.get(event.address, (None, 0))
        if block is not None and block.requested_nbytes == event.nbytes:
            return block.nbytes
        return max(align_up(event.nbytes, BLOCK_NBYTES), BLOCK_NBYTES)

    def _history(self, trace: Trace) -> History:
        if self._contradictions:
            self._notes.append(
                f"{self._contradictions:,} events contradict others, and were skipped."
            )
        if self._lowest:
            self._notes.append(f"Addresses are counted from {self._lowest:#x} on.")
        self._notes.extend(
            f"cuda:{other} ran out of memory. Try: --device {other}"
            for other in self._failed_too
        )
        columns = [np.asarray(column, np.int64) for column in self._columns]
        np.minimum(columns[4], self._last_moment + 1, out=columns[4])
        history = History(
            name=self._name,
            device=f"cuda:{self._device}",
            placed_by="PyTorch's allocator, as it recorded itself",
            last_moment=self._last_moment,
            blocks=BlockTable(*columns),
            committed=self._log.table(self._last_moment),
            holders=tuple(self._places),
            places=tuple(self._places),
            has_addresses=not self._lowest,
            markers=tuple(self._markers(trace)),
            notes=tuple(self._notes),
        )
        return replace(history, limit_nbytes=_capacity(history, self._failures))

    def _markers(self, trace: Trace) -> Iterator[Moment]:
        """Yield the markers; those of failures where the failures are."""
        failures = iter(self._failures)
        for moment, label in trace.markers:
            is_failure = label == OUT_OF_MEMORY
            yield Moment(next(failures).moment if is_failure else moment, label)


def _lowest(segments: Iterable[TorchSegment], events: Iterable[TorchEvent]) -> int:
    """Return from which address on others are counted: 0 where that is not needed."""
    addresses = [one.address for one in segments]
    addresses.extend(one.address for one in events if one.action != "oom")
    highest = max(addresses, default=0)
    if highest < ADDRESS_LIMIT:
        return 0
    lowest = min(addresses)
    if highest - lowest >= ADDRESS_LIMIT:
        raise RefusedError(
            f"addresses must lie within {ADDRESS_LIMIT} bytes, got {lowest:#x} and "
            f"{highest:#x}"
        )
    return lowest


def _moved(segment: TorchSegment, by: int) -> TorchSegment:
    if not by:
        return segment
    blocks = (one._replace(address=one.address - by) for one in segment.blocks)
    return segment._replace(address=segment.address - by, blocks=tuple(blocks))


def _capacity(history: History, failures: list[TorchOutOfMemory]) -> int | None:
    """Return what the device had for PyTorch: what it held, and what was left."""
    for failure in failures[-1:]:
        if (left := failure.device_free_nbytes) is not None:
            return int(history.committed_nbytes[failure.moment]) + left
    return None


def _first_ranges(
    at_end: Iterable[tuple[int, int]], events: Sequence[TorchEvent]
) -> list[tuple[int, int]]:
    """Return what was reserved before the events."""
    log = RangeLog()
    for address, nbytes in at_end:
        log.add(address, nbytes, 0)
    for event in reversed(events):
        if event.action in TAKES:
            log.remove(event.address, event.nbytes, 0)
        elif event.action in GIVES_BACK:
            log.add(event.address, event.nbytes, 0)
    return log.ranges()


def _first_blocks(
    events: Iterable[TorchEvent], at_end: dict[int, tuple[TorchBlock, int]]
) -> dict[int, TorchEvent]:
    """Return the allocations, by address, of what was live before the events."""
    first: dict[int, TorchEvent] = {}
    seen = set[int]()
    for event in events:
        if event.action == "free_completed" and event.address not in seen:
            first[event.address] = event
        if event.action in {"alloc", "free_completed"}:
            seen.add(event.address)
    for address in at_end.keys() - seen:
        block, stream = at_end[address]
        first[address] = TorchEvent(
            "alloc", address, block.requested_nbytes, stream, block.place
        )
    return first
