"""No file makes a reader take more memory than its limits say, whatever it claims.

All of it is read in a process that may have 1 GiB of addresses, Python and NumPy
included: where it claimed more, that would be a MemoryError.
"""

import json
import subprocess
import sys

import pytest

from tests.command_line import ENVIRONMENT

if sys.platform != "linux":
    pytest.skip("limits this process's addresses", allow_module_level=True)

PROGRAM = r"""
import gzip, json, resource, struct, sys, zlib

import numpy

from madl.diagnostics import load_snapshot, open_trace
from madl.diagnostics.traces.journal import BYTE_ORDER_MARK, HEAD_NBYTES, MAGIC
from madl.diagnostics.torch.snapshot import read_torch_snapshot
from madl.errors import MadlError

MIB = 1 << 20
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


def packed(start, piece, count):
    # Level 1 packs what repeats as well as any.
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    parts = [packer.compress(start)]
    parts += [packer.compress(piece) for _ in range(count)]
    return b"".join([*parts, packer.flush()])


def journal(ring, end):
    head = MAGIC + struct.pack("=QQQ", BYTE_ORDER_MARK, ring, end)
    return head.ljust(HEAD_NBYTES, b"\0") + bytes(64)


def text_of_journal(nbytes):
    record = struct.pack("=QQ", nbytes, 1 << 4 | 4)
    head = MAGIC + struct.pack("=QQQ", BYTE_ORDER_MARK, 4096, 32)
    return head.ljust(HEAD_NBYTES, b"\0") + record + bytes(64)


TRACE, SNAPSHOT = b"# madl-trace v1\n", b'{"format":"madl-snapshot","device":"'
cases = {
    "a line of 2 MiB": (open_trace, packed(TRACE, b"a" * MIB, 2)),
    "a first line of 2 MiB": (open_trace, packed(b"", b"a" * MIB, 2)),
    "markers of 144 MB": (
        open_trace, packed(TRACE, b"m," + b"x" * 60_000 + b"\n", 2400)
    ),
    "a number of 60,000 digits": (open_trace, TRACE + b"a,0," + b"9" * 60_000),
    "a snapshot of 160 MiB": (load_snapshot, packed(SNAPSHOT, b"x" * MIB, 160)),
    "a snapshot nested without end": (
        load_snapshot, SNAPSHOT[:24] + b',"arenas":' + b"[" * 1_000_000
    ),
    "a pickle of 8 GiB": (
        read_torch_snapshot, b"\x80\x04\x8d" + struct.pack("<Q", 8 << 30) + b"x"
    ),
    "a number of 2 GiB": (read_torch_snapshot, b"\x80\x04\x8b\xff\xff\xff\x7f1"),
    "a frame of 8 GiB": (
        read_torch_snapshot, b"\x80\x04\x95" + struct.pack("<Q", 8 << 30) + b"N."
    ),
    "values without a container": (read_torch_snapshot, b"\x80\x04" + b"N" * 100_000),
    "lists in lists": (read_torch_snapshot, b"\x80\x04" + b"](" * 100_000),
    "a ring of 1 EiB": (open_trace, journal(1 << 60, 0)),
    "records of 1 TiB": (open_trace, journal(4096, 1 << 40)),
    "a text of 8 EiB": (open_trace, text_of_journal(1 << 63)),
    "an Umpire line of 2 MiB": (
        open_trace, packed(b'{"kind":"replay"', b" " * MIB, 2)
    ),
    "a row of 2 MiB": (open_trace, packed(b"id,lower,upper,size\n", b"1" * MIB, 2)),
}
found = {}
for name, (read, data) in cases.items():
    try:
        read(data)
        found[name] = "was read"
    except MadlError as error:
        found[name] = "refused" if len(str(error)) < 400 else "a long error"
print(json.dumps(found))
"""


def test_what_is_too_large_is_refused_before_it_is_there() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        encoding="utf-8",
        env=ENVIRONMENT,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 16
    assert set(found.values()) == {"refused"}, found
