"""While a call of the driver waits, other threads of Python run."""

import subprocess
import sys

import pytest

from tests.backends.cuda.emulator import Emulator

CALLS = {
    "tobytes": "memory.tobytes()",
    "copy_from": "memory.copy_from(host)",
    "copy_to": "memory.copy_to(host)",
    "staged": "large.copy_from(many)",
    "fill": "memory.fill(3)",
    "copy": "madl.copy(other, memory)",
    "resize": "memory.resize(1 << 17)",
    "allocate": "pool.allocate(5 << 20)",
    "stream": "pool.allocate(1 << 20, stream=stream).free()",
    "record_stream": "memory.record_stream(stream)",
    "dlpack": "memory.__dlpack__()",
    "finish": "backend.finish(2)",
    "free": "memory.free(); other.free(); large.free()",
    "trim": "pool.trim()",
    "close": "pool.close()",
}

PROGRAM = """
import sys, threading
from cuda.bindings import driver
import madl
from madl.backends.cuda import CudaBackend
from tests.backends.cuda.emulator import Emulator

emulator, backend = Emulator(), CudaBackend(0, memory=sys.argv[1])
pool = madl.Pool(backend)
memory, other, large = (pool.allocate(n) for n in (1 << 16, 1 << 16, 17 << 20))
host, many = bytearray(1 << 16), bytearray(17 << 20)
with backend._device.current():
    stream = int(driver.cuStreamCreate(1)[1])
for name, call in zip(sys.argv[2::2], sys.argv[3::2]):
    print(name, end=" ", flush=True)
    emulator.hold(is_held=True)
    threading.Timer(0.05, lambda: emulator.hold(is_held=False)).start()
    exec(call)
    emulator.hold(is_held=False)
print("passed", flush=True)
"""


@pytest.mark.parametrize("memory", ["pages", "segments", "async", "pinned", "managed"])
def test_a_call_that_waits_lets_other_threads_run(
    memory: str, emulator: Emulator
) -> None:
    calls = [text for pair in CALLS.items() for text in pair]
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, memory, *calls],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except subprocess.TimeoutExpired as stuck:
        pytest.fail(f"deadlock in the last of {stuck.stdout!r}")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("passed\n")
