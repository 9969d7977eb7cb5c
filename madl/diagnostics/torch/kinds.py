"""Tell which kinds of events a history lacks: PyTorch may be told to leave some out.

``_record_memory_history(skip_actions=...)`` does, from PyTorch 2.10 on. What is left
can look whole: only where it contradicts itself, or the end, is a kind known to miss.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from madl.diagnostics.torch.snapshot import TorchEvent, TorchSegment

_ONLY_THE_END = "only what was there at the end is shown."


def whole_events(
    events: Sequence[TorchEvent], segments: Sequence[TorchSegment]
) -> tuple[tuple[TorchEvent, ...], list[str]]:
    """Return the events of a device that can be relied on, and notes on them.

    Args:
        events: All of the device; each block in the result ends at most once, with
            ``free_completed``.
        segments: Those of the device.
    """
    live = {
        block.address
        for segment in segments
        for block in segment.blocks
        if block.is_live
    }
    ended = _with_ends(events, live)
    missing = tuple(_missing(ended, segments, live))
    if missing:
        return (), [
            f"The history has no {' and no '.join(missing)} events, which the others "
            f"need: {_ONLY_THE_END} Try: record without skip_actions"
        ]
    if not ended:
        return (), [f"There is no history: {_ONLY_THE_END}"]
    notes = []
    kinds = {event.action for event in events}
    if "free_requested" in kinds and "free_completed" not in kinds:
        notes.append(
            "The history has no free_completed events: a block ends where its free is "
            "requested, though another stream may use it for longer."
        )
    return ended, notes


def _with_ends(events: Sequence[TorchEvent], live: set[int]) -> tuple[TorchEvent, ...]:
    """Return events that have no ``free_requested``.

    Where no free is ever completed, the requests stand for that; not the last one of a
    block that is live at the end: another stream still uses it.
    """
    if any(event.action == "free_completed" for event in events):
        return tuple(event for event in events if event.action != "free_requested")
    ended, used_again = list[TorchEvent](), set[int]()
    for event in reversed(events):
        if event.action == "alloc":
            used_again.add(event.address)
        elif event.action == "free_requested":
            if event.address in live and event.address not in used_again:
                continue
            event = event._replace(action="free_completed")
        ended.append(event)
    return tuple(reversed(ended))


def _missing(
    events: Sequence[TorchEvent], segments: Sequence[TorchSegment], live: set[int]
) -> Iterator[str]:
    """Yield the kinds of events without which the others cannot be."""
    kinds = {event.action for event in events}
    starts = {segment.address for segment in segments}
    is_reserved = _reserved(segments)
    pairs: tuple[tuple[str, str, Callable[[int], bool]], ...] = (
        ("alloc", "free_completed", live.__contains__),
        ("segment_alloc", "segment_free", starts.__contains__),
        ("segment_map", "segment_unmap", is_reserved),
    )
    for begin, end, is_there in pairs:
        found = kinds & {begin, end}
        if len(found) != 1:
            continue
        # All are of one kind: no address can be in two, and the end must agree.
        at = [event.address for event in events if event.action in found]
        has_begun = begin in found
        differs = any(is_there(address) != has_begun for address in at)
        if len(set(at)) < len(at) or (segments and differs):
            yield end if has_begun else begin
    if segments and not any(kind.startswith("segment") for kind in kinds):
        blocks = (one.address for one in events if one.action != "oom")
        if not all(map(is_reserved, blocks)):
            yield "segment_alloc"


def _reserved(segments: Sequence[TorchSegment]) -> Callable[[int], bool]:
    """Return what tells whether an address lies in a segment."""
    ranges = sorted((one.address, one.address + one.nbytes) for one in segments)
    starts = [start for start, _ in ranges]

    def is_reserved(address: int) -> bool:
        number = bisect_right(starts, address) - 1
        return number >= 0 and address < ranges[number][1]

    return is_reserved
