"""A pool in C grows and is used without the interpreter's lock."""

import ctypes
import itertools
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cuda.bindings import driver

from madl import BackendNotFoundError, ForkError
from madl.integrations.cuda_pool import FREE, MALLOC, RECORD_STREAM, CudaPool
from madl.integrations.torch import use_pool
from tests.backends.cuda.content import MIB, PAGE
from tests.backends.cuda.emulator import OUT_OF_MEMORY, Emulator
from tests.backends.cuda.test_streams import make_stream
from tests.programs import endings

pytest.importorskip("madl.native.device_pools", reason="madl is not compiled")

LIMIT = 64 * MIB
POINTER, SIZE = ctypes.c_void_p, ctypes.c_ssize_t


class Functions(NamedTuple):
    """The C functions of a pool, as a C program calls them."""

    library: ctypes.CDLL
    device: int

    def malloc(self, nbytes: int, stream: int = 0) -> int | None:
        function = self.library[MALLOC]
        function.restype, function.argtypes = POINTER, (SIZE, ctypes.c_int, POINTER)
        found: int | None = function(nbytes, self.device, stream)
        return found

    def free(self, address: int | None, nbytes: int = 0, stream: int = 0) -> None:
        function = self.library[FREE]
        function.argtypes = (POINTER, SIZE, ctypes.c_int, POINTER)
        function(address, nbytes, self.device, stream)

    def record_stream(self, address: int, stream: int) -> None:
        function = self.library[RECORD_STREAM]
        function.argtypes = (POINTER, POINTER)
        function(address, stream)


@pytest.fixture(scope="module")
def only_pool() -> CudaPool:
    """There is one for the life of the process."""
    return CudaPool("cuda:0", limit=LIMIT)


@pytest.fixture
def pool(only_pool: CudaPool) -> Iterator[CudaPool]:
    yield only_pool
    only_pool.check()
    assert only_pool.stats().live_nbytes == 0
    only_pool.trim()  # after it has waited for the device
    assert only_pool.stats().committed_nbytes == 0


@pytest.fixture
def c(pool: CudaPool) -> Functions:
    return Functions(ctypes.CDLL(pool.library), pool.index)


def fill(address: int, value: int, stream: int, nbytes: int = 512) -> None:
    status = driver.cuMemsetD8Async(address, value, nbytes, stream)
    assert int(status[0]) == 0


def read(address: int, nbytes: int = 1) -> bytes:
    found = bytearray(nbytes)
    assert int(driver.cuMemcpyDtoH(found, address, nbytes)[0]) == 0
    return bytes(found)


@pytest.fixture
def _context(pool: CudaPool) -> None:
    driver.cuCtxSetCurrent(pool._backend._device.context)


def test_memory_can_be_used_by_the_device(
    pool: CudaPool, c: Functions, emulator: Emulator
) -> None:
    address = c.malloc(3 * MIB)

    assert address is not None
    assert address % 512 == 0
    assert emulator.is_usable(address, 3 * MIB)
    assert pool.stats().live_nbytes == 3 * MIB
    assert pool.stats().committed_nbytes == 4 * MIB
    c.free(address)


def test_it_needs_no_current_context(c: Functions, emulator: Emulator) -> None:
    emulator.leave()

    address = c.malloc(MIB)

    assert address is not None
    assert int(driver.cuCtxGetCurrent()[1]) == 0
    c.free(address)


def test_the_lowest_block_that_fits_is_taken(c: Functions) -> None:
    addresses = [c.malloc(nbytes) for nbytes in (512, MIB, 512, 2 * MIB, 512)]
    first, second = addresses[1], addresses[3]
    c.free(second)
    c.free(first)

    assert c.malloc(MIB) == first
    assert c.malloc(2 * MIB) == second
    for address in addresses:
        c.free(address)


def test_free_neighbours_are_joined(pool: CudaPool, c: Functions) -> None:
    addresses = [c.malloc(MIB) for _ in range(6)]
    for address in (addresses[1], addresses[3], addresses[2]):
        c.free(address)

    assert c.malloc(3 * MIB) == addresses[1]
    assert pool.stats().committed_nbytes == 6 * MIB
    for address in addresses[:2] + addresses[4:]:
        c.free(address)


def test_a_free_block_at_the_end_grows(pool: CudaPool, c: Functions) -> None:
    address = c.malloc(2 * MIB)
    c.free(address)

    assert c.malloc(5 * MIB) == address
    assert pool.stats().committed_nbytes == 6 * MIB
    c.free(address)


def test_over_the_limit_is_null_and_changes_nothing(
    pool: CudaPool, c: Functions
) -> None:
    address = c.malloc(60 * MIB)
    before = pool.stats()

    assert c.malloc(6 * MIB) is None
    assert c.malloc(LIMIT + 1) is None
    assert c.malloc(2**63 - 1) is None

    after = pool.stats()
    assert after == before._replace(refused_count=before.refused_count + 3)
    c.free(address)


@pytest.mark.parametrize("nbytes", [0, -1, -(2**63)])
def test_no_bytes_are_null(c: Functions, nbytes: int) -> None:
    assert c.malloc(nbytes) is None


def test_a_device_without_a_pool_gives_null(c: Functions) -> None:
    assert c._replace(device=1).malloc(512) is None
    assert c._replace(device=-1).malloc(512) is None
    assert c._replace(device=1 << 20).malloc(512) is None


def test_a_full_device_is_null_and_leaves_nothing(
    pool: CudaPool, c: Functions, emulator: Emulator
) -> None:
    emulator.set(memory=8 * MIB)

    assert c.malloc(10 * MIB) is None

    assert pool.stats().last_status == OUT_OF_MEMORY
    assert emulator.count("handles") == 0


@pytest.mark.parametrize("number", range(1, 8))
def test_whatever_the_driver_refuses_nothing_has_changed(
    number: int, pool: CudaPool, c: Functions, emulator: Emulator
) -> None:
    kept = c.malloc(MIB)
    before, left = pool.stats(), emulator.left()
    emulator.fail(number, OUT_OF_MEMORY)

    address = c.malloc(10 * MIB)

    emulator.recover()
    pool.check()
    if address is None:
        stats = pool.stats()
        assert (stats.live_nbytes, stats.committed_nbytes) == before[:3:2]
        assert emulator.left() == left
    else:  # it was a call to leave the device that failed
        assert number in (6, 7)
    c.free(address)
    c.free(kept)
    emulator.leave()


def test_a_stream_has_at_once_what_it_freed_and_no_other_has(c: Functions) -> None:
    one, other = make_stream(), make_stream()
    address = c.malloc(MIB, one)
    c.free(address)

    elsewhere = c.malloc(MIB, other)
    again = c.malloc(MIB, one)

    assert elsewhere != address == again
    c.free(elsewhere)
    c.free(again)


def test_0_and_1_are_the_legacy_default_stream(c: Functions) -> None:
    address = c.malloc(MIB, 0)
    c.free(address)

    assert c.malloc(MIB, 1) == address
    c.free(address)


@pytest.mark.usefixtures("_context")
def test_at_the_limit_a_stream_takes_over_behind_the_other(
    c: Functions, emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    one, other = make_stream(), make_stream()
    address = c.malloc(LIMIT, one)
    assert address is not None
    fill(address, 1, one)
    c.free(address)

    assert c.malloc(LIMIT, other) == address

    fill(address, 2, other)
    driver.cuStreamSynchronize(other)
    emulator.run()
    assert read(address) == b"\x02"
    c.free(address)


@pytest.mark.usefixtures("_context")
def test_a_block_waits_for_the_streams_that_use_it(
    pool: CudaPool, c: Functions, emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    one, other = make_stream(), make_stream()
    address = c.malloc(2 * MIB, one)
    assert address is not None
    fill(address, 1, other)
    for _ in range(2):
        c.record_stream(address, other)
    c.record_stream(address, one)

    c.free(address)

    pool.check()
    assert c.malloc(2 * MIB, one) == address
    fill(address, 2, one)
    driver.cuStreamSynchronize(one)
    emulator.run()
    assert read(address) == b"\x02"
    c.free(address)


def test_a_free_calls_no_driver(c: Functions, emulator: Emulator) -> None:
    address = c.malloc(MIB)
    other = c.malloc(MIB)
    assert other is not None
    c.record_stream(other, make_stream())
    calls = emulator.calls()

    c.free(address)
    c.free(other)

    assert emulator.calls() == calls


@pytest.mark.usefixtures("_context")
def test_in_a_capture_it_grows_but_takes_nothing_over(
    c: Functions, emulator: Emulator
) -> None:
    captured, other = make_stream(), make_stream()
    theirs = c.malloc(32 * MIB, other)
    c.free(theirs)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    driver.cuStreamBeginCapture(captured, mode)

    mine = c.malloc(32 * MIB, captured)
    more = c.malloc(MIB, captured)

    status, _ = driver.cuStreamEndCapture(captured)
    assert int(status) == 0
    assert mine not in (None, theirs)
    assert more is None
    c.free(mine)
    again = c.malloc(LIMIT, captured)
    assert again is not None
    c.free(again)


def test_what_is_not_live_can_be_freed_in_vain(pool: CudaPool, c: Functions) -> None:
    address = c.malloc(MIB)
    assert address is not None
    before = pool.stats().unknown_free_count
    c.free(address)

    for wrong in (address, address + 512, 1, 2**63, None):
        c.free(wrong)

    assert pool.stats().unknown_free_count == before + 4


def test_trim_gives_back_what_is_free_at_the_end(pool: CudaPool, c: Functions) -> None:
    kept, *dropped = [c.malloc(4 * MIB) for _ in range(4)]
    for address in dropped:
        c.free(address)

    assert pool.trim() == 12 * MIB
    assert pool.stats().committed_nbytes == 4 * MIB
    c.free(kept)
    assert pool.trim() == 4 * MIB


def test_trim_gives_back_what_streams_have_shared(pool: CudaPool, c: Functions) -> None:
    one, other = make_stream(), make_stream()
    c.free(c.malloc(LIMIT, one))
    parts = [c.malloc(512, other), c.malloc(512, one)]
    for part in parts:
        c.free(part)

    assert pool.trim() == LIMIT


def test_a_seeded_walk_keeps_every_invariant(pool: CudaPool, c: Functions) -> None:
    streams = [0, 1, *(make_stream() for _ in range(3))]
    draw = random.Random(7)
    live: dict[int, int] = {}
    for step in range(3000):
        if live and draw.random() < 0.5:
            address = draw.choice(list(live))
            if draw.random() < 0.2:
                c.record_stream(address, draw.choice(streams))
            c.free(address)
            del live[address]
        else:
            nbytes = draw.choice((512, 4096, 100_000, 3 * MIB, 9 * MIB))
            found = c.malloc(nbytes, draw.choice(streams))
            if found is not None:
                live[found] = nbytes
        if step % 50 == 0:
            pool.check()
            ranges = sorted((at, at + nbytes) for at, nbytes in live.items())
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    assert pool.stats().refused_count > 0
    for address in live:
        c.free(address)
    for stream in streams:  # what was recorded is settled
        c.free(c.malloc(LIMIT, stream))


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("threads") / "threads.so"
    source = Path(__file__).with_name("threads.c")
    command = ["gcc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o"]
    subprocess.run([*command, str(library), str(source), "-lpthread"], check=True)
    return library


def test_threads_are_served_while_the_interpreters_lock_is_held(
    pool: CudaPool, c: Functions, threads: Path
) -> None:
    streams = (POINTER * 4)(*(make_stream() for _ in range(4)))
    started = pool.stats().allocation_count

    # PyDLL: the lock is held until all threads have ended, so none can wait for it.
    served = ctypes.PyDLL(str(threads)).run_threads(
        c.library[MALLOC], c.library[FREE], streams, 4, 2000
    )

    assert served == 8000
    assert pool.stats().allocation_count == started + 8000


def test_threads_of_python_do_not_disturb_each_other(
    pool: CudaPool, c: Functions
) -> None:
    def work() -> None:
        for i in range(300):
            c.free(c.malloc(1 + i * 7919 % MIB))
            pool.stats()

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    pool.check()


def test_a_forked_child_gets_nothing_and_waits_for_nobody(c: Functions) -> None:
    address = c.malloc(MIB)

    child = os.fork()
    if child == 0:
        found = c.malloc(MIB)
        c.free(address)
        os._exit(0 if found is None else 1)

    assert os.waitpid(child, 0)[1] == 0
    c.free(address)


def test_a_forked_child_is_told_whose_pool_it_is(pool: CudaPool) -> None:
    process = os.getpid()
    reader, writer = os.pipe()

    child = os.fork()
    if child == 0:
        told = [repr(pool)]
        for call in (pool.stats, pool.trim, pool.check):
            try:
                call()
            except ForkError as error:
                told.append(str(error))
        os.write(writer, "\n".join(told).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="ascii") as file:
        lines = file.read().splitlines()

    assert os.waitpid(child, 0)[1] == 0
    assert lines == [
        f"<madl CudaPool on cuda:0: of process {process}>",
        *[str(ForkError("cuda:0", process))] * 3,
    ]


FREED_AT_EXIT = """
import ctypes, sys
from madl.integrations.cuda_pool import FREE, MALLOC, CudaPool
library = ctypes.CDLL(CudaPool("cuda:0", limit="64 MiB").library)
malloc = library[MALLOC]
malloc.restype = ctypes.c_void_p
malloc.argtypes = ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
kept = malloc(1000, 0, None)
last = ctypes.c_void_p(malloc(1000, 0, None))
ctypes.CDLL({threads!r}).give_at_exit(library[FREE], last)
"""


def test_a_program_ends_in_silence_that_frees_when_python_is_gone(
    threads: Path,
) -> None:
    program = FREED_AT_EXIT.format(threads=str(threads))

    assert endings(program) == {(0, "", "")}


LIMITED_BY_A_SETTING = """
import madl
from madl.integrations.cuda_pool import CudaPool
madl.configure(limit="8 MiB, cuda=64 MiB")
print(CudaPool.of().limit_nbytes >> 20)
"""


def test_the_pool_that_nobody_made_has_the_limit_of_the_settings() -> None:
    assert endings(LIMITED_BY_A_SETTING) == {(0, "64\n", "")}


def test_a_device_has_one_pool(pool: CudaPool) -> None:
    assert CudaPool.of("cuda:0") is pool
    with pytest.raises(ValueError, match="cuda:0 has a CudaPool already: <madl Cuda"):
        CudaPool("cuda:0")


@pytest.mark.parametrize(
    ("device", "limit", "message"),
    [
        ("cpu", None, "device must be a CUDA device, got 'cpu'"),
        ("cuda:first", None, "device must be a CUDA device, got 'cuda:first'"),
        ("cuda:1", PAGE - 1, "limit must hold a page of 2.0 MiB, got 2097151"),
    ],
)
def test_wrong_arguments_say_so(device: str, limit: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CudaPool(device, limit=limit)


@pytest.mark.parametrize("device", ["cpu", "cuda_pinned:0", "cuda:-1"])
def test_no_other_device_has_the_pool_of_a_cuda_device(
    pool: CudaPool, device: str
) -> None:
    with pytest.raises(ValueError, match="device must be a CUDA device, got"):
        CudaPool.of(device)


def test_a_device_that_is_not_there_says_so() -> None:
    with pytest.raises(BackendNotFoundError):
        CudaPool("cuda:7")


def test_tensors_of_pytorch_come_from_the_pool(only_pool: CudaPool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if os.environ["TEST_MADL_CUDA_SUITE"] != "real" or not torch.cuda.is_available():
        pytest.skip("PyTorch for CUDA runs on a GPU only")
    before = only_pool.stats().allocation_count

    with use_pool(only_pool):
        made = torch.full((1024, 1024), 3.0, device=only_pool.device)
        total = (made + 1).sum().item()

    assert total == 4 << 20
    assert only_pool.stats().allocation_count > before
    only_pool.check()
