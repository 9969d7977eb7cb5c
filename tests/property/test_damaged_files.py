"""A file that was damaged in any way is read, or refused with an error of madl's own.

``TEST_MADL_FUZZ_FILES`` says how many of each kind are tried; else 10,000 in all.
"""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import madl
from madl import Pool
from madl.diagnostics import load_snapshot, open_trace, save_snapshot, write_trace
from madl.diagnostics.histories import open_history
from madl.diagnostics.runs.page import page_data
from madl.diagnostics.traces.builder import TraceBuilder
from madl.diagnostics.traces.reader import open_trace_or_snapshot
from madl.diagnostics.whatif_report import what_if
from madl.errors import MadlError
from madl.stacks import Line
from tests.property.damage import damaged
from tests.torch_dumps import fragmented

COUNT = int(os.environ.get("TEST_MADL_FUZZ_FILES", "700"))


def _trace(folder: Path) -> bytes:
    builder = TraceBuilder()
    stack = (Line("train.py", 12, "forward"), Line("main.py", 3, "<module>"))
    builder.describe("name", "sample")
    for turn in range(12):
        builder.allocate(turn * 1000, tag="weights" if turn % 3 else None, stream=-turn)
        builder.allocate(turn, stack=stack)
        builder.mark(f"step {turn}")
        builder.free(2 * turn)
    write_trace(builder.finish("sample"), folder / "t.trace.gz")
    return gzip.decompress((folder / "t.trace.gz").read_bytes())


def _gzipped(folder: Path) -> bytes:
    return gzip.compress(_trace(folder))


def _journal(folder: Path) -> bytes:
    pool = Pool("sim")
    with madl.record(folder / "j.trace.gz", stacks=2) as recorder:
        held = [pool.allocate(n, tag=f"tag{n % 3}") for n in range(8)]
        recorder.mark("step")
        held.clear()
        content = (folder / "j.trace.gz.journal").read_bytes()
    # The first records lie in the ring: what comes after is zeros.
    return content[:4096]


def _rmm(folder: Path) -> bytes:
    rows = [
        f"1,15:47:02.{n:06},{'free' if n % 2 else 'allocate'},{hex(4096 + n // 2)},64,0"
        for n in range(30)
    ]
    return "\n".join(["Thread,Time,Action,Pointer,Size,Stream", *rows]).encode()


def _umpire(folder: Path) -> bytes:
    lines = []
    for n in range(10):
        payload = {"allocator_ref": "0x10", "size": n}
        old = {"kind": "replay", "event": "allocate", "payload": payload}
        lines.append(json.dumps(old | {"result": {"memory_ptr": hex(n + 1)}}))
        texts = {"allocator_ref": "0x10", "pointer": hex(n + 1)}
        new = {"category": "operation", "name": "deallocate", "string_args": texts}
        lines.append(json.dumps(new))
    return "\n".join(lines).encode()


def _csv(folder: Path) -> bytes:
    rows = [f"{n},{n},{n + 5},{n * 64}" for n in range(30)]
    return "\n".join(["id,lower,upper,size", *rows]).encode()


def _snapshot(folder: Path) -> bytes:
    with Pool("sim") as pool:
        held = [pool.allocate(n * 500, tag="t") for n in range(1, 9)]
        del held[::2]
        save_snapshot(pool.snapshot(), folder / "s.json")
        held.clear()
    return (folder / "s.json").read_bytes()


def _draw(data: bytes) -> None:
    page_data(open_history(data))


KINDS: dict[str, tuple[Callable[[Path], bytes], Callable[[bytes], object]]] = {
    "trace": (_trace, open_trace),
    "gzipped trace": (_gzipped, open_trace),
    "journal": (_journal, open_trace),
    "RMM log": (_rmm, open_trace),
    "Umpire log": (_umpire, open_trace),
    "CSV": (_csv, open_trace),
    "snapshot": (_snapshot, load_snapshot),
    "either": (_snapshot, open_trace_or_snapshot),
    "picture of a snapshot": (_snapshot, _draw),
    "picture of a trace": (_trace, _draw),
    "picture of a journal": (_journal, _draw),
    "PyTorch snapshot": (lambda _: fragmented().pickled(4), _draw),
    "old PyTorch snapshot": (lambda _: fragmented().pickled(2), _draw),
    "what-if of PyTorch": (lambda _: fragmented().pickled(4), what_if),
    "what-if of a trace": (_trace, what_if),
}
"""What makes a sound file, and what reads it."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    make, read = KINDS[kind]
    sound = make(tmp_path)
    refused = 0
    read(sound)

    for seed in range(COUNT):
        content = damaged(sound, seed)
        try:
            read(content)
        except MadlError as error:
            refused += 1
            str(error).encode()  # fit to be printed anywhere
        except Exception as error:
            error.add_note(f"damage {seed} of the {kind}")
            raise

    assert refused > 0, "none of it mattered"
