"""OpenCL at interpreter exit and after a fork: no crash, no message, nobody waits."""

import os
import subprocess
import sys

import pytest

from tests.backends.opencl.device import pyopencl_or_skip

pyopencl_or_skip()
pytestmark = pytest.mark.opencl

TIMEOUT_S = 60

START = """
import gc, os, sys, threading
import madl
import pyopencl as cl
from madl.pool.allocate import parts_of
from madl.backends.opencl import OpenclBackend
from madl.pool.allocate import parts_of
from madl.integrations.pyopencl import PoolAllocator

pool = madl.Pool(OpenclBackend("opencl:0", memory=MEMORY))
memory = pool.allocate(1 << 20)
memory.fill(1)
"""

ENDS = {
    "memory is live": "",
    "a sub-buffer is live": "kept = memory.native",
    "the pool goes first": "del pool",
    "the pool is closed, a sub-buffer is live": """
kept = memory.native
memory.free()
pool.close()
""",
    "an array is live": """
import pyopencl.array
queue = parts_of(pool).backend.backend.queue
array = cl.array.zeros(queue, 1000, "float32", allocator=PoolAllocator(pool))
""",
    "a cycle holds all": """
class Knot: pass
knot = Knot()
knot.all = [knot, pool, memory, memory.native]
gc.disable()
del pool, memory
""",
    "builtins hold all": """
import builtins
builtins.kept = [pool, memory, memory.native, parts_of(pool).backend.backend.queue]
""",
    "a copy is on its way": """
queue = cl.CommandQueue(parts_of(pool).backend.backend.context)
backend = parts_of(pool).backend.backend
reservation = backend.reserve(1 << 24)
backend.copy_from_host(reservation, 0, memoryview(bytes(1 << 24)), stream=queue)
""",
    "the default pool is live": """
kept = madl.allocate(1000, device="opencl:0")
kept.fill(2)
""",
    "an error is on its way": "raise SystemExit",
}


def run_python(code: str, memory: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", f"MEMORY = {memory!r}\n{START}{code}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        # The caches of pyopencl warn of what others write at the same time.
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("memory", ["buffer", "managed"])
def test_the_interpreter_ends_in_silence(end: str, memory: str) -> None:
    done = run_python(ENDS[end], memory)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FORK = """
def refused(use):
    try:
        use()
    except madl.ForkError as error:
        return str(error)
    return "it was not refused"

if MEMORY == "buffer":
    held = next(iter(parts_of(pool).backend.backend.held.values())).native
    witness = cl.MemoryObject.from_int_ptr(held.int_ptr)
    references = witness.reference_count
    del held
pid = os.fork()
if pid == 0:
    uses = [
        lambda: pool.allocate(64 << 20),
        lambda: memory.fill(2),
        lambda: memory.copy_to(bytearray(1 << 20)),
        lambda: memory[512:].native,
        lambda: madl.Pool("opencl:0"),
        lambda: parts_of(pool).backend.backend.record(None),
    ]
    if MEMORY == "managed":
        del uses[1:3]
    said = {refused(use) for use in uses}
    memory.free()
    pool.trim()
    pool.close()
    del pool, memory, uses
    gc.collect()
    if MEMORY == "buffer":
        assert witness.reference_count == references, "the child has released it"
    print(*said, sep="\\n", flush=True)
    sys.exit(7)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), os.getpid())
print(memory[:4].tobytes() == bytes([1] * 4), pool.allocate(64 << 20).nbytes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("memory", ["buffer", "managed"])
def test_a_forked_child_uses_no_device_and_takes_nothing_from_its_parent(
    memory: str,
) -> None:
    done = run_python(FORK, memory)

    *said, ended, after = done.stdout.splitlines()
    status, parent = ended.split()
    devices = {text.partition(" ")[0] for text in said}
    assert devices <= {"opencl:0", "opencl_managed:0"}
    for text in said:
        assert text.endswith(
            f" was opened by process {parent} and cannot be used after fork. Try: "
            "multiprocessing with the 'spawn' start method, or fork before any device "
            "is opened"
        )
    assert said
    assert (status, after) == ("7", "True 67108864")
    assert done.stderr == ""
