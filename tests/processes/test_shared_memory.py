"""Memory that is shared, within one process: what a token is, and what it is not."""

import gc
import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

import madl
from madl import (
    FreedMemoryError,
    MissingCapabilityError,
    OutOfMemoryError,
    Pool,
)
from madl.pool.allocate import parts_of
from tests.programs import run_as_file

MIB = 1 << 20

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def pool() -> Pool:
    return Pool("shared")


def test_both_sides_see_each_others_writes(pool: Pool) -> None:
    owned = pool.allocate(3 * MIB)
    attached = madl.share(owned).attach()

    owned.as_array("uint8")[:3] = [1, 2, 3]
    attached.memoryview()[3:5] = b"\x04\x05"

    assert owned.tobytes()[:6] == attached.tobytes()[:6] == b"\1\2\3\4\5\0"
    assert owned.address != attached.address


def test_what_is_attached_is_memory_like_any_other(pool: Pool) -> None:
    owned = pool.allocate(1000)
    owned.fill(7)

    attached = madl.share(owned).attach()

    assert (attached.nbytes, attached.device) == (1000, "shared")
    assert np.asarray(attached).sum() == 7000
    assert attached[10:20].tobytes() == b"\x07" * 10
    attached.free()
    with pytest.raises(FreedMemoryError):
        attached.tobytes()
    assert owned.tobytes() == b"\x07" * 1000


def test_a_token_keeps_the_memory_when_all_else_is_freed(pool: Pool) -> None:
    owned = pool.allocate(1000)
    owned.fill(7)
    token = madl.share(owned)

    owned.free()
    pool.close()

    assert token.attach().tobytes() == b"\x07" * 1000


def test_a_view_keeps_what_is_attached(pool: Pool) -> None:
    owned = pool.allocate(5000)
    attached = madl.share(owned).attach()
    array = attached.as_array("uint8")

    attached.free()
    del attached
    owned.fill(9)

    assert array.sum() == 9 * 5000


def test_a_freed_block_is_never_handed_out_again(pool: Pool) -> None:
    owned = pool.allocate(MIB)
    owned.fill(1)
    kept = madl.share(owned).attach()
    owned.free()

    for _ in range(20):
        fresh = pool.allocate(MIB)
        assert fresh.tobytes() == bytes(MIB)
        fresh.fill(2)
        fresh.free()

    assert kept.tobytes() == b"\x01" * MIB


def test_blocks_that_are_aligned_further_are_shared_too(pool: Pool) -> None:
    owned = pool.allocate(5000, alignment=MIB)
    owned.fill(3)

    attached = madl.share(owned).attach()

    assert owned.address % MIB == 0
    assert attached.tobytes() == b"\x03" * 5000


def test_what_is_attached_is_shared_on(pool: Pool) -> None:
    owned = pool.allocate(5000, alignment=MIB)
    attached = madl.share(owned).attach()

    again = madl.share(attached).attach()
    attached.free()
    owned.fill(4)

    assert again.tobytes() == b"\x04" * 5000


def test_no_bytes_can_be_shared(pool: Pool) -> None:
    attached = madl.share(pool.allocate(0)).attach()

    assert attached.tobytes() == b""


def test_arrays_can_be_made_of_shared_memory() -> None:
    array = madl.zeros((10, 10), "float32", device="shared")

    array += 1

    assert array.sum() == 100


def test_statistics_count_what_the_pool_owns_and_nothing_else(pool: Pool) -> None:
    owned = pool.allocate(MIB)
    attached = [madl.share(owned).attach() for _ in range(3)]

    stats = pool.stats()
    assert (stats.live_nbytes, stats.committed_nbytes) == (MIB, MIB)
    assert attached[0].pool.stats().live_nbytes == MIB
    owned.free()
    assert pool.trim() == MIB
    assert pool.stats().committed_nbytes == pool.stats().reserved_nbytes == 0
    pool.check()


def test_resize_leaves_what_was_shared(pool: Pool) -> None:
    memory = pool.allocate(1000)
    memory.fill(1)
    before = madl.share(memory)

    memory.resize(9000)
    memory.fill(2)

    assert before.attach().tobytes() == b"\x01" * 1000


def test_other_devices_say_what_to_do() -> None:
    memory = madl.allocate(10, device="cpu")

    with pytest.raises(MissingCapabilityError) as caught:
        madl.share(memory)

    assert str(caught.value) == (
        "cpu has no memory that other processes can attach. "
        "Try: allocate it with device='shared'"
    )


def test_a_slice_is_shared_by_its_whole(pool: Pool) -> None:
    memory = pool.allocate(100)

    with pytest.raises(ValueError, match="share the memory that it was cut from"):
        madl.share(memory[10:20])


def test_freed_memory_is_not_shared(pool: Pool) -> None:
    memory = pool.allocate(100)
    memory.free()

    with pytest.raises(FreedMemoryError):
        madl.share(memory)


def test_only_memory_is_shared() -> None:
    with pytest.raises(TypeError, match="memory must be a Memory, got bytearray"):
        madl.share(bytearray(10))  # type: ignore[arg-type]  # a user's


def test_a_token_says_what_it_is(pool: Pool) -> None:
    token = madl.share(pool.allocate(100))

    assert repr(token) == f"<madl token: 100 bytes of process {os.getpid()}>"


def test_a_limit_holds_and_reclaimers_are_asked(pool: Pool) -> None:
    limited = Pool("shared", limit=MIB)
    held = [limited.allocate(MIB)]
    remove = limited.on_out_of_memory(lambda nbytes: held.clear())

    second = limited.allocate(MIB)

    assert held == []
    remove()
    with pytest.raises(OutOfMemoryError) as caught:
        limited.allocate(1)
    report = caught.value.report
    assert (report.live_nbytes, report.limit_nbytes) == (second.nbytes, MIB)


def test_the_limit_that_is_advised_is_enough_and_no_more() -> None:
    limited = Pool("shared", limit=MIB)
    held = limited.allocate(MIB)

    with pytest.raises(OutOfMemoryError) as caught:
        limited.allocate(1)

    enough = caught.value.report.enough_limit_nbytes
    assert enough == MIB + parts_of(limited).backend.granularity
    larger = Pool("shared", limit=enough)
    assert (larger.allocate(held.nbytes).nbytes, larger.allocate(1).nbytes) == (MIB, 1)


def test_a_tag_counts_what_is_attached_under_it(pool: Pool) -> None:
    token = madl.share(pool.allocate(100))

    with madl.tag("received", limit=150):
        attached = token.attach()
        with pytest.raises(OutOfMemoryError):
            token.attach()

    assert attached.tag == "received"


def test_more_than_the_machine_has_is_refused(pool: Pool) -> None:
    with pytest.raises(OutOfMemoryError):
        pool.allocate(1 << 50)

    assert pool.stats().committed_nbytes == 0


@pytest.mark.parametrize("option", [{"pooling": True}, {"page_size": "64 KiB"}])
def test_options_that_it_cannot_honour_are_refused(option: dict[str, bool]) -> None:
    with pytest.raises(MissingCapabilityError, match="shared has no "):
        Pool("shared", **option)  # type: ignore[arg-type]  # one of two types


def test_it_is_one_of_the_devices() -> None:
    assert "shared" in madl.devices()


@only_linux
def test_the_size_of_the_file_is_sealed(pool: Pool) -> None:
    memory = pool.allocate(5000)
    token = madl.share(memory)
    file = token._shared.descriptor.file  # type: ignore[attr-defined]  # its descriptor

    for nbytes in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(file, nbytes)


def traces() -> tuple[int, int, list[str]]:
    """Return how many files are open, how many are mapped, and those with a name."""
    mapped = Path("/proc/self/maps").read_text().count("memfd:madl")
    return len(os.listdir("/proc/self/fd")), mapped, os.listdir("/dev/shm")


@only_linux
def test_no_file_stays_open_and_none_has_a_name(pool: Pool) -> None:
    pool.allocate(1).free()
    pool.trim()
    before = traces()

    for _ in range(50):
        memory = pool.allocate(MIB)
        token = madl.share(memory)
        token.attach()
        memory.free()
    del memory, token
    gc.collect()
    pool.trim()

    assert traces() == before


OUT_OF_FILES = """
import resource
import madl

madl.devices()  # while modules can be imported
pool = madl.Pool("shared")
held = [pool.allocate(10)]
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
try:
    while True:
        held.append(pool.allocate(10))
except madl.BackendCallError as error:
    print(error)
pool.check()
held.pop().free()
held.append(pool.allocate(10))
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
print(madl.devices())
try:
    madl.Pool("shared")
except madl.BackendNotFoundError as error:
    print(error.reason)
"""


@only_linux
def test_every_block_takes_a_file_and_their_number_is_limited() -> None:
    done = run_as_file(OUT_OF_FILES)

    refused = "cannot reserve 4.0 KiB: memfd_create failed with 24 (Too many open files"
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == f"shared: {refused})"
    assert "'shared'" not in lines[1]
    assert refused in lines[2]


@only_linux
def test_nobody_else_may_open_the_file_behind_it(pool: Pool) -> None:
    owned = pool.allocate(1000)
    descriptor = madl.share(owned)._shared.descriptor  # type: ignore[attr-defined]  # of POSIX

    status = os.fstat(descriptor.file)

    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_nlink == 0
