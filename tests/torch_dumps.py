"""Snapshots as ``torch.cuda.memory._dump_snapshot`` writes them, made by hand."""

import pickle
from typing import Any

MIB = 1 << 20
BASE = 0x7F00_0000_0000
Record = dict[str, Any]


def stack(place: str) -> list[Record]:
    """Return a stack whose frame in the program is ``file.py:line``."""
    file, _, line = place.partition(":")
    return [
        {"filename": "??", "line": 0, "name": "at::empty(long)"},
        {"filename": "/x/torch/nn/modules/linear.py", "line": 5, "name": "forward"},
        {"filename": file, "line": int(line), "name": "step"},
    ]


class Dump:
    """A program on one GPU that says where its blocks are, and what is recorded."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.settings: Record = {"PYTORCH_CUDA_ALLOC_CONF": ""}
        self.events: list[Record] = []
        self._segments: dict[int, int] = {}
        self._live: dict[int, Record] = {}

    def segment(self, offset: int, nbytes: int, action: str = "segment_alloc") -> None:
        """Take memory from the device."""
        self._segments[BASE + offset] = nbytes
        self._note(action, offset, nbytes)

    def segment_free(self, offset: int) -> None:
        """Give memory back."""
        self._note("segment_free", offset, self._segments.pop(BASE + offset))

    def unmap(self, offset: int, nbytes: int) -> None:
        """Give the end of an expandable segment back."""
        start = max(start for start in self._segments if start <= BASE + offset)
        assert start + self._segments[start] == BASE + offset + nbytes
        self._segments[start] -= nbytes
        self._segments = {at: left for at, left in self._segments.items() if left}
        self._note("segment_unmap", offset, nbytes)

    def map(self, offset: int, nbytes: int) -> None:
        """Take memory for an expandable segment, at its end if it has begun."""
        for start, taken in self._segments.items():
            if start + taken == BASE + offset:
                self._segments[start] += nbytes
                self._note("segment_map", offset, nbytes)
                return
        self.segment(offset, nbytes, "segment_map")

    def alloc(
        self, offset: int, nbytes: int, place: str = "train.py:1", stream: int = 0
    ) -> None:
        """Allocate a block; it takes a multiple of 512 bytes."""
        self._live[BASE + offset] = {"nbytes": nbytes, "frames": stack(place)}
        self._note("alloc", offset, nbytes, frames=stack(place), stream=stream)

    def free(self, offset: int) -> None:
        """Free a block, which takes effect at once."""
        nbytes = self._live.pop(BASE + offset)["nbytes"]
        self._note("free_requested", offset, nbytes)
        self._note("free_completed", offset, nbytes)

    def fail(self, nbytes: int, device_free: int, place: str = "train.py:9") -> None:
        """Run out of memory."""
        self._note("oom", 0, nbytes, frames=stack(place), device_free=device_free)
        del self.events[-1]["addr"]

    def forget(self, events: int) -> None:
        """Lose the oldest events, as a ring buffer does."""
        del self.events[:events]

    def content(self) -> Record:
        """Return the snapshot."""
        return {
            "segments": [self._segment(*one) for one in sorted(self._segments.items())],
            "device_traces": [[] for _ in range(self.device)] + [self.events],
            "allocator_settings": self.settings,
            "external_annotations": [],
        }

    def pickled(self, protocol: int = 4) -> bytes:
        """Return the file."""
        return pickle.dumps(self.content(), protocol=protocol)

    def _note(self, action: str, offset: int, nbytes: int, **more: object) -> None:
        self.events.append(
            {
                "action": action,
                "addr": BASE + offset,
                "size": nbytes,
                "stream": 0,
                "time_us": 1_700_000_000_000_000 + len(self.events),
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": [],
                **more,
            }
        )

    def _segment(self, address: int, nbytes: int) -> Record:
        blocks, end = list[Record](), address
        for start, live in sorted(self._live.items()):
            if not address <= start < address + nbytes:
                continue
            if start > end:
                blocks.append(_block(end, start - end, None))
            capacity = -(-live["nbytes"] // 512) * 512
            blocks.append(_block(start, capacity, live))
            end = start + capacity
        if end < address + nbytes:
            blocks.append(_block(end, address + nbytes - end, None))
        return {
            "device": self.device,
            "address": address,
            "total_size": nbytes,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }


def _block(address: int, nbytes: int, live: Record | None) -> Record:
    return {
        "address": address,
        "size": nbytes,
        "requested_size": nbytes if live is None else live["nbytes"],
        "state": "inactive" if live is None else "active_allocated",
        "frames": [] if live is None else live["frames"],
    }


def fragmented() -> Dump:
    """Return a program that fails although enough is free, in two pieces.

    Two segments of 32 MiB hold 18 MiB each. 28 MiB are free, but 24 MiB fit in neither
    piece, and the device has 18 MiB left.
    """
    dump = Dump()
    starts = (0, 64 * MIB)
    for start in starts:
        dump.segment(start, 32 * MIB)
        dump.alloc(start, 32 * MIB, "model.py:7")
    for start in starts:
        dump.free(start)
    for start in starts:
        dump.alloc(start, 18 * MIB, "model.py:20")
    dump.fail(24 * MIB, 18 * MIB)
    return dump
