"""A write outside a block, or after its free, as found by debug mode."""

from typing import NamedTuple

from madl.sizes import format_exactly
from madl.stacks import Stack, told

OVERRUN = "overrun"
UNDERRUN = "underrun"
USE_AFTER_FREE = "use after free"

MOST_SHOWN = 16
"""Bytes of what was written that are kept."""


class Damage(NamedTuple):
    """What was found around a block, or in one that was freed.

    Attributes:
        kind: ``"overrun"``, ``"underrun"`` or ``"use after free"``.
        device: The device's name.
        nbytes: Of the block, as asked for.
        offset: Where it lies in its arena, guards included, in bytes.
        address: Of its first byte; ``None`` where the device has no addresses.
        tag: That the block was allocated under; ``None`` without one.
        first: The first byte that was written, from the start of the block: negative
            before it, ``nbytes`` or more behind it.
        stop: One more than the last that was found.
        written: What was there, at most 16 bytes of it.
        allocated_at: The line that allocated the block, then its callers.
        freed_at: The line that freed it, then its callers; empty while it is live.
    """

    kind: str
    device: str
    nbytes: int
    offset: int
    address: int | None
    tag: str | None
    first: int
    stop: int
    written: bytes
    allocated_at: Stack
    freed_at: Stack

    def __str__(self) -> str:
        at = "" if self.address is None else f" at {self.address:#x}"
        tag = "without a tag" if self.tag is None else f"tag {self.tag!r}"
        more = "..." if len(self.written) < self.stop - self.first else ""
        lines = [
            f"{self.device}: {self.kind} of a block of {format_exactly(self.nbytes)}"
            f"{at} (offset {self.offset}), {tag}: {self._where()} "
            f"{self.written.hex(' ')}{more}"
        ]
        for what, stack in ("allocated", self.allocated_at), ("freed", self.freed_at):
            if stack:
                lines.append(f"  {what} at")
                lines += [f"    {text}" for text in told(stack)]
        return "\n".join(lines)

    def _where(self) -> str:
        if self.stop - self.first == 1:
            return f"byte {self.first} was written, and is"
        return f"bytes {self.first} to {self.stop - 1} were written, and are"
