"""Read the replay log of Umpire, LLNL's memory manager: JSON, an object a line.

Two generations of it are read: ``"kind": "replay"`` with a payload and a result, and
events with ``string_args`` and ``numeric_args``. An allocator's name becomes the tag.
The program's own output may lie between the lines of the log.
"""

import json
from collections.abc import Sequence
from typing import Any

from madl.diagnostics.traces.builder import LiveBlocks, TraceBuilder
from madl.diagnostics.traces.lines import (
    RefusedError,
    UnfinishedLine,
    cut_off,
    hexadecimal,
    shown,
)
from madl.diagnostics.traces.trace import NBYTES_LIMIT

_ALLOCATOR_COUNT_LIMIT = 1 << 16
_STARTS = (b'"kind"', b'"category"')
_LONGEST_TAG = 100


def is_umpire(lines: Sequence[bytes]) -> bool:
    """Whether these are the first lines of a replay log."""
    first = next((line for line in lines if not line.startswith(b"#")), b"")
    return _is_event(first)


def _is_event(line: bytes) -> bool:
    start, _, rest = line[:40].partition(b"{")
    return not start.strip() and rest.lstrip().startswith(_STARTS)


class UmpireReader:
    """Adds the allocations and frees of a log, whichever allocator they are of."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._blocks = LiveBlocks(builder)
        self.finish = self._blocks.finish
        self._notes = builder.notes
        self._has_events = False  # else a line that is cut off is no log
        self._names: dict[int, str] = {}

    def add(self, line: bytes) -> None:
        """Add the event of a line, if it is one."""
        if not _is_event(line):
            return
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            if isinstance(line, UnfinishedLine) and self._has_events:
                self._notes.append(cut_off(line))
                return
            raise RefusedError(f"it is no JSON: {shown(line)}") from None
        self._has_events = True
        if "string_args" in event or "numeric_args" in event:
            self._add_new(event)
        elif event.get("kind") == "replay":
            self._add_old(event)

    def _add_old(self, event: dict[str, Any]) -> None:
        """Add an event whose result, where there is one, comes in a line of its own."""
        payload, result = _object(event, "payload"), _object(event, "result")
        name = event.get("event")
        if name == "makeAllocator" and result:
            self._name(_address(result, "allocator_ref"), payload.get("allocator_name"))
        elif name == "allocate" and result:
            self._allocate(payload, _address(result, "memory_ptr"), payload)
        elif name == "deallocate":
            self._blocks.free(_address(payload, "memory_ptr"))

    def _add_new(self, event: dict[str, Any]) -> None:
        texts, numbers = _object(event, "string_args"), _object(event, "numeric_args")
        name = event.get("name")
        if name in ("make_allocator", "make_memory_resource"):
            label = _object(event, "tags").get("allocator_name")
            self._name(_address(texts, "allocator_ref"), label)
        elif name == "allocate":
            self._allocate(texts, _address(texts, "pointer"), numbers)
        elif name == "deallocate":
            self._blocks.free(_address(texts, "pointer"))

    def _name(self, allocator: int, name: object) -> None:
        if len(self._names) == _ALLOCATOR_COUNT_LIMIT:
            raise RefusedError(f"more than {_ALLOCATOR_COUNT_LIMIT} allocators")
        if isinstance(name, str) and name.isprintable():
            self._names[allocator] = name[:_LONGEST_TAG]

    def _allocate(
        self, texts: dict[str, Any], address: int, numbers: dict[str, Any]
    ) -> None:
        nbytes = numbers.get("size")
        if type(nbytes) is not int or not 0 <= nbytes < NBYTES_LIMIT:
            raise RefusedError(
                f'"size" must be from 0 and below {NBYTES_LIMIT}, got {_shown(nbytes)}'
            )
        tag = self._names.get(_address(texts, "allocator_ref"))
        self._blocks.allocate(address, nbytes, tag=tag)


def _object(event: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an object that an event may lack; in some, a text stands there."""
    value = event.get(key)
    return value if isinstance(value, dict) else {}


def _address(fields: dict[str, Any], key: str) -> int:
    value = fields.get(key)
    if not isinstance(value, str):
        raise RefusedError(f'"{key}" must be an address, got {_shown(value)}')
    return hexadecimal(value.encode(errors="replace"), f'"{key}"')


def _shown(value: object) -> str:
    return shown(repr(value).encode(errors="replace"))
