"""A pool over OpenCL: long seeded use, every byte checked; and memory that is full."""

import random
import subprocess
import sys

import pytest

from madl import Memory, Pool
from madl.backends.opencl import OpenclBackend
from tests.backends.opencl.device import pyopencl_or_skip

pyopencl_or_skip()
pytestmark = pytest.mark.opencl

MIB = 1 << 20
MOST_LIVE_NBYTES = 24 * MIB
STEPS = 400


class Walk:
    """Allocates and frees at random; each block has bytes of its own."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool = pool
        self.random = random.Random(seed)
        self.live: list[tuple[Memory, bytes]] = []
        self.live_nbytes = 0

    def step(self) -> None:
        """Allocate and write, or verify and free."""
        is_full = self.live_nbytes > MOST_LIVE_NBYTES
        if self.live and (is_full or self.random.random() < 0.45):
            self.free(self.random.randrange(len(self.live)))
            return
        nbytes = int(2 ** self.random.uniform(4, 21))
        memory, content = self.pool.allocate(nbytes), self.random.randbytes(nbytes)
        memory.copy_from(content)
        self.live.append((memory, content))
        self.live_nbytes += nbytes

    def free(self, index: int) -> None:
        """Give a block back, its bytes intact."""
        memory, content = self.live.pop(index)
        assert memory.tobytes() == content
        self.live_nbytes -= memory.nbytes
        memory.free()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("memory", ["buffer", "fine", "coarse"])
@pytest.mark.parametrize(
    "options", [{}, {"limit": 64 * MIB}, {"pooling": False}, {"debug": True}]
)
def test_every_byte_of_a_long_use_is_where_it_was_put(
    memory: str, options: dict[str, int], seed: int
) -> None:
    backend = OpenclBackend("opencl:0", memory=memory)
    with Pool(backend, **options) as pool:  # type: ignore[arg-type]  # options of a pool
        walk = Walk(pool, seed)
        for number in range(STEPS):
            walk.step()
            if number % 100 == 0:
                pool.check()
        while walk.live:
            walk.free(-1)
        pool.check()

    assert backend.held == {}


FULL = """
import resource, sys
import madl
from madl.backends.opencl import OpenclBackend

pool = madl.Pool(OpenclBackend("opencl:0", memory=sys.argv[1]))
pool.allocate(1 << 20).fill(1)
with open("/proc/self/statm") as file:
    taken = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (256 << 20),) * 2)
held = []
try:
    while True:
        held.append(pool.allocate(64 << 20))
except madl.OutOfMemoryError as error:
    print(error)
assert len(held) > 1
for number, memory in enumerate(held):
    memory.fill(number)
assert all(
    memory[:8].tobytes() == bytes([number]) * 8 for number, memory in enumerate(held)
)
pool.check()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is what bounds it")
@pytest.mark.parametrize(
    ("memory", "native"),
    [
        ("buffer", "clCreateBuffer failed with -6 (CL_OUT_OF_HOST_MEMORY)"),
        ("fine", "clSVMAlloc failed with -5 (CL_OUT_OF_RESOURCES)"),
    ],
)
def test_memory_that_is_not_there_is_refused_when_it_is_allocated(
    memory: str, native: str
) -> None:
    backend = OpenclBackend("opencl:0")
    if "Portable Computing Language" not in backend.describe()["platform"]:
        pytest.skip("only PoCL takes a device's memory from the process")

    done = subprocess.run(
        [sys.executable, "-c", FULL, memory],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("opencl")
    assert native in done.stdout
