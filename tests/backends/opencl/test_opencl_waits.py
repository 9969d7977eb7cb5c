"""While a call waits for the device, other threads of Python run.

Queued work may be behind a thread of Python, as by an event that it sets: a wait that
keeps the interpreter lock then never ends. Each case is a process of its own.
"""

import subprocess
import sys

import pytest

from tests.backends.opencl.device import pyopencl_or_skip

pyopencl_or_skip()
pytestmark = pytest.mark.opencl

WAITS = {
    "tobytes": "memory.tobytes()",
    "copy_from": "memory.copy_from(host)",
    "copy_to": "memory.copy_to(host)",
    "fill": "memory.fill(3)",
    "resize": "memory.resize(1 << 17)",
    "copy": "madl.copy(other, memory)",
    "overlap": "madl.copy(memory[100:30_000], memory[:20_000])",
    "of an array": "madl.copy(memory, array)",
    "to an array": "madl.copy(array, memory)",
    "mapped": "with mapped(memory, gated): pass",
    "trim": "memory.free(); other.free(); pool.trim()",
    "close": "memory.free(); other.free(); pool.close()",
    "end of a pool": (
        "memory.copy_to(host, stream=gated); pool.close(); del memory, other, pool"
    ),
}

PROGRAM = """
import gc, os, sys, threading
import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import madl
from madl.backends.opencl import OpenclBackend
from madl.integrations.pyopencl import mapped

kind, is_own = sys.argv[1], sys.argv[2] == "own"
context = OpenclBackend("opencl:0").context

def attempt(wait):
    usual, own = cl.CommandQueue(context), cl.CommandQueue(context)
    gated = own if is_own else usual
    pool = madl.Pool(OpenclBackend(usual, memory=kind))
    memory, other = (pool.allocate(1 << 16, stream=gated) for _ in range(2))
    memory.fill(1)
    other.fill(2)
    array = cla.zeros(gated, 1 << 16, np.uint8)
    host = bytearray(1 << 16)
    gate = cl.UserEvent(context)
    cl.enqueue_barrier(gated, wait_for=[gate])
    def open_gate():
        gate.set_status(cl.command_execution_status.COMPLETE)
    threading.Timer(0.1, open_gate).start()
    names = {**globals(), **locals()}
    del memory, other, pool
    exec(wait, names)
    names.clear()
    gc.collect()

for name, wait in zip(sys.argv[3::2], sys.argv[4::2]):
    print(name, end=" ", flush=True)
    attempt(wait)
print("passed", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("stream", ["usual", "own"])
@pytest.mark.parametrize("kind", ["buffer", "coarse", "fine"])
def test_a_wait_lets_other_threads_run(kind: str, stream: str) -> None:
    waits = [text for pair in WAITS.items() for text in pair]
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, kind, stream, *waits],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except subprocess.TimeoutExpired as stuck:
        pytest.fail(f"deadlock in the last of {stuck.stdout!r}")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("passed\n")
