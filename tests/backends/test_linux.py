"""Host memory of Linux, against the running kernel."""

import ctypes
import errno
import os
import random
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Linux only", allow_module_level=True)

from madl.backends import _linux
from madl.backends._linux import LazyReservation, LinuxMemory, StrictReservation
from madl.errors import BackendCallError, OutOfMemoryError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE = 2 * MIB
OS_PAGE = os.sysconf("SC_PAGESIZE")
SOURCE_ROOT = Path(_linux.__file__).parents[2]


def linux_memory(
    page_nbytes: int = PAGE, *, huge_pages: bool = True, is_lazy_allowed: bool = True
) -> LinuxMemory:
    return LinuxMemory(
        page_nbytes=page_nbytes, huge_pages=huge_pages, is_lazy_allowed=is_lazy_allowed
    )


@pytest.fixture
def memory() -> LinuxMemory:
    return linux_memory()


@pytest.fixture(params=["lazy", "strict"])
def reservation(
    request: pytest.FixtureRequest,
) -> Iterator[LazyReservation | StrictReservation]:
    reservation = linux_memory(is_lazy_allowed=request.param == "lazy").reserve(
        64 * PAGE
    )
    yield reservation
    reservation.release()


@pytest.fixture
def lazy(memory: LinuxMemory) -> Iterator[LazyReservation]:
    reservation = memory.reserve(64 * PAGE)
    assert isinstance(reservation, LazyReservation)
    yield reservation
    reservation.release()


def write(address: int, value: int, nbytes: int = PAGE) -> None:
    ctypes.memset(address, value, nbytes)


def read(address: int, nbytes: int = 1) -> bytes:
    return ctypes.string_at(address, nbytes)


def resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * OS_PAGE


def fault_count() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def kernel_field(reservation: LazyReservation | StrictReservation, field: str) -> int:
    """Return a field of smaps in bytes, summed over the VMAs of a reservation."""
    total, is_inside = 0, False
    end = reservation.address + reservation.nbytes
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_inside = reservation.address <= int(found[1], 16) < end
        elif is_inside and line.startswith(f"{field}:"):
            total += int(line.split()[1]) * KIB
    return total


def vma_count(reservation: LazyReservation | StrictReservation) -> int:
    end = reservation.address + reservation.nbytes
    borders = re.findall(
        r"^([0-9a-f]+)-([0-9a-f]+) ", Path("/proc/self/maps").read_text(), re.MULTILINE
    )
    return sum(
        int(first, 16) < end and int(last, 16) > reservation.address
        for first, last in borders
    )


def run_child(code: str) -> str:
    """Run code in a process of its own, after a few imports; return its output."""
    prelude = (
        "import ctypes, resource, sys\n"
        "from madl.backends.cpu import CpuBackend\n"
        "from madl.errors import OutOfMemoryError\n"
        "from madl.backends._linux import *\n"
        "MIB, GIB, PAGE = 1 << 20, 1 << 30, 2 << 20\n"
        "def memory(lazy=True, page=PAGE):\n"
        "    return LinuxMemory(\n"
        "        page_nbytes=page, huge_pages=True, is_lazy_allowed=lazy)\n"
        "def limit(which, nbytes):\n"
        "    resource.setrlimit(which, (nbytes, resource.getrlimit(which)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", prelude + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_reservations_start_at_a_multiple_of_the_alignment(memory: LinuxMemory) -> None:
    reservations = [memory.reserve(OS_PAGE * n) for n in (1, 3, 511, 513)]

    assert [each.address % memory.alignment for each in reservations] == [0] * 4
    for each in reservations:
        each.release()


def test_a_reservation_takes_address_space_only(memory: LinuxMemory) -> None:
    before = resident_nbytes()

    reservation = memory.reserve(64 * GIB)

    assert resident_nbytes() - before < 4 * MIB
    reservation.release()


def test_release_returns_the_address_space(memory: LinuxMemory) -> None:
    # Together 2 PiB: more than 16 times what x86 has.
    for _ in range(256):
        reservation = memory.reserve(8 << 40)
        write(reservation.address + 5 * PAGE, 1, OS_PAGE)
        reservation.release()


def test_nothing_is_kept_around_a_reservation(memory: LinuxMemory) -> None:
    def address_space_nbytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * OS_PAGE

    before = address_space_nbytes()

    reservations = [memory.reserve(3 * OS_PAGE) for _ in range(64)]

    assert address_space_nbytes() - before < 4 * MIB
    for each in reservations:
        each.release()


@pytest.mark.parametrize("is_lazy_allowed", [True, False])
@pytest.mark.parametrize("nbytes", [1 << 47, (1 << 64) - OS_PAGE, 1 << 64, 1 << 70])
def test_an_impossible_reservation_is_out_of_memory(
    nbytes: int, is_lazy_allowed: bool
) -> None:
    memory = linux_memory(is_lazy_allowed=is_lazy_allowed)

    with pytest.raises(OutOfMemoryError) as caught:
        memory.reserve(nbytes)

    assert caught.value.requested == nbytes
    assert (
        str(caught.value.report.native)
        == "mmap failed with 12 (Cannot allocate memory)"
    )


def test_the_whole_text_of_a_refused_reservation(memory: LinuxMemory) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        memory.reserve(1 << 50)

    assert str(caught.value) == (
        "cpu: cannot place 1.0 PiB; mmap failed with 12 (Cannot allocate memory). "
        "Try: free some memory, or end other programs that use this device."
    )


def test_committed_parts_can_be_written(
    reservation: LazyReservation | StrictReservation,
) -> None:
    for offset in (0, 7 * PAGE, 63 * PAGE):
        reservation.commit(offset, PAGE)
        write(reservation.address + offset, 9)

    assert read(reservation.address + 64 * PAGE - 1) == b"\x09"


def test_decommit_gives_the_memory_of_a_part_back(
    reservation: LazyReservation | StrictReservation,
) -> None:
    reservation.commit(0, 16 * PAGE)
    write(reservation.address, 1, 16 * PAGE)

    reservation.decommit(4 * PAGE, 8 * PAGE)

    assert kernel_field(reservation, "Rss") == 8 * PAGE
    assert read(reservation.address + 4 * PAGE - 1) == b"\x01"
    assert read(reservation.address + 12 * PAGE) == b"\x01"


def test_a_part_can_be_committed_again(
    reservation: LazyReservation | StrictReservation,
) -> None:
    for value in range(1, 50):
        reservation.commit(3 * PAGE, 2 * PAGE)
        write(reservation.address + 3 * PAGE, value, 2 * PAGE)
        assert read(reservation.address + 5 * PAGE - 1)[0] == value
        reservation.decommit(3 * PAGE, 2 * PAGE)


def test_remap_leaves_destination_committed_and_source_not(
    reservation: LazyReservation | StrictReservation,
) -> None:
    reservation.commit(0, 2 * PAGE)
    write(reservation.address, 7, 2 * PAGE)

    reservation.remap(0, 30 * PAGE, 2 * PAGE)

    write(reservation.address + 30 * PAGE, 8, 2 * PAGE)
    assert kernel_field(reservation, "Rss") == 2 * PAGE
    reservation.commit(0, 2 * PAGE)
    assert read(reservation.address, 2 * PAGE) == bytes(2 * PAGE)


def test_remap_moves_content_without_a_fault(lazy: LazyReservation) -> None:
    for page in range(4):
        write(lazy.address + page * PAGE, page + 1)
    faults = fault_count()

    lazy.remap(0, 40 * PAGE, 4 * PAGE)
    content = [read(lazy.address + (40 + page) * PAGE)[0] for page in range(4)]
    write(lazy.address + 40 * PAGE, 5, 4 * PAGE)

    assert content == [1, 2, 3, 4]
    assert fault_count() - faults <= 2  # the interpreter's own


def test_remap_without_huge_pages_moves_without_a_fault() -> None:
    reservation = linux_memory(64 * KIB).reserve(64 * PAGE)
    write(reservation.address, 3, 64 * KIB)
    faults = fault_count()

    reservation.remap(0, 9 * PAGE + 64 * KIB, 64 * KIB)
    content = read(reservation.address + 9 * PAGE + 64 * KIB, 64 * KIB)

    assert content == b"\x03" * (64 * KIB)
    assert fault_count() - faults <= 2  # 16 if it had faulted
    reservation.release()


def test_huge_pages_survive_a_remap(lazy: LazyReservation) -> None:
    write(lazy.address, 1, 8 * PAGE)
    huge = kernel_field(lazy, "AnonHugePages")
    if "[never]" in (_linux._read(_linux._THP / "enabled") or "[never]"):
        pytest.skip("this kernel gives no huge pages")
    assert huge >= 4 * PAGE

    for page in range(8):
        lazy.remap(page * PAGE, (60 - 3 * page) * PAGE, PAGE)

    assert kernel_field(lazy, "AnonHugePages") == huge


def test_remap_of_a_source_of_several_vmas(lazy: LazyReservation) -> None:
    for page in range(4):
        write(lazy.address + page * PAGE, page + 1)
    for page in range(4):
        lazy.remap(page * PAGE, (23 - page) * PAGE, PAGE)

    lazy.remap(20 * PAGE, 50 * PAGE, 4 * PAGE)

    content = [read(lazy.address + (50 + page) * PAGE)[0] for page in range(4)]
    assert content == [4, 3, 2, 1]


def test_each_mremap_is_of_one_vma(
    lazy: LazyReservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in range(4):
        write(lazy.address + page * PAGE, page + 1)
    lazy.remap(PAGE, 9 * PAGE, PAGE)
    lazy.remap(0, 8 * PAGE, PAGE)
    lengths = []
    mremap = _linux._mremap

    def record(address: int, nbytes: int, *rest: int) -> int:
        lengths.append(nbytes // PAGE)
        return mremap(address, nbytes, *rest)

    monkeypatch.setattr(_linux, "_mremap", record)
    lazy.remap(7 * PAGE, 40 * PAGE, 5 * PAGE)

    assert lengths == [1, 1, 1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_scattered_remaps_keep_content_and_count_vmas(seed: int) -> None:
    memory = linux_memory(64 * KIB)
    reservation = memory.reserve(512 * 64 * KIB)
    assert isinstance(reservation, LazyReservation)
    walk = random.Random(seed)
    content = {page: page % 250 + 1 for page in range(40)}
    for page, value in content.items():
        write(reservation.address + page * 64 * KIB, value, 64 * KIB)

    for _ in range(2000):
        source = walk.choice(list(content))
        destination = walk.choice([page for page in range(512) if page not in content])
        reservation.remap(source * 64 * KIB, destination * 64 * KIB, 64 * KIB)
        content[destination] = content.pop(source)

    found = {page: read(reservation.address + page * 64 * KIB)[0] for page in content}
    assert found == content
    assert vma_count(reservation) <= memory.cut_count + 1 <= 514
    cuts = reservation._cuts
    assert all(first < second for first, second in pairwise(cuts))
    reservation.release()
    assert memory.cut_count == 0


def test_too_many_vmas_end_moving_and_not_recycling(lazy: LazyReservation) -> None:
    lazy._memory._cut_limit = 4

    for page in range(20):
        write(lazy.address + page * PAGE, 1)
        lazy.remap(page * PAGE, (22 + 2 * page) * PAGE, PAGE)
        write(lazy.address + (22 + 2 * page) * PAGE, 2)

    assert kernel_field(lazy, "Rss") == 20 * PAGE
    assert vma_count(lazy) <= 6


@pytest.mark.parametrize("is_unmapped", [False, True])
def test_a_failed_mremap_is_repaired(
    lazy: LazyReservation, monkeypatch: pytest.MonkeyPatch, is_unmapped: bool
) -> None:
    write(lazy.address, 1)

    def fail(_source: int, _from: int, nbytes: int, _flags: int, target: int) -> int:
        if is_unmapped:
            _linux._unmap(target, nbytes)
        ctypes.set_errno(errno.ENOMEM)
        return _linux._FAILED

    monkeypatch.setattr(_linux, "_mremap", fail)
    lazy.remap(0, 33 * PAGE, PAGE)

    write(lazy.address + 33 * PAGE, 4)
    assert read(lazy.address) == b"\x00"
    assert kernel_field(lazy, "Rss") <= 2 * PAGE


def test_a_repair_spares_what_another_thread_mapped(
    lazy: LazyReservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = lazy.address + 33 * PAGE + 5 * OS_PAGE
    flags = _linux._LAZY | _linux._MAP_FIXED

    def fail(_source: int, _from: int, nbytes: int, _flags: int, target: int) -> int:
        _linux._unmap(target, nbytes)
        _linux._mmap(taken, OS_PAGE, _linux._READ_WRITE, flags, -1, 0)
        write(taken, 7, OS_PAGE)
        return _linux._FAILED

    monkeypatch.setattr(_linux, "_mremap", fail)
    with pytest.raises(BackendCallError) as caught:
        lazy.remap(0, 33 * PAGE, PAGE)

    assert read(taken, OS_PAGE) == b"\x07" * OS_PAGE
    assert str(caught.value) == (
        "cpu: cannot restore 2.0 MiB: mmap failed with 17 (File exists)"
    )


def test_a_kernel_without_dontunmap_has_no_remap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: int) -> int:
        ctypes.set_errno(errno.EINVAL)
        return _linux._FAILED

    monkeypatch.setattr(_linux, "_mremap", refuse)

    assert linux_memory().remap_refusal == "mremap: Invalid argument"


def test_decommit_of_locked_memory_says_what_the_kernel_said(
    lazy: LazyReservation,
) -> None:
    lock = _linux._declare("mlock", ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t)
    if lock(lazy.address, OS_PAGE) != 0:
        pytest.skip("nothing may be locked here")

    with pytest.raises(BackendCallError) as caught:
        lazy.decommit(0, PAGE)

    assert str(caught.value) == (
        "cpu: cannot decommit 2.0 MiB: madvise failed with 22 (Invalid argument)"
    )


@pytest.mark.parametrize(
    ("enabled", "page_nbytes", "huge_pages", "advice"),
    [
        ("always [madvise] never", PAGE, True, 14),
        ("always [madvise] never", 64 * KIB, True, None),
        ("always [madvise] never", PAGE, False, None),
        ("[always] madvise never", PAGE, True, 14),
        ("[always] madvise never", 64 * KIB, True, 15),
        ("[always] madvise never", PAGE, False, 15),
        ("", PAGE, True, None),
    ],
)
def test_huge_pages_are_asked_for_only_where_they_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    enabled: str,
    page_nbytes: int,
    huge_pages: bool,
    advice: int | None,
) -> None:
    if enabled:
        (tmp_path / "enabled").write_text(f"{enabled}\n")
        (tmp_path / "hpage_pmd_size").write_text("2097152\n")
    monkeypatch.setattr(_linux, "_THP", tmp_path)

    assert _linux._huge_page_advice(page_nbytes, huge_pages) == advice


def test_overcommit_mode_2_is_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "overcommit_memory").write_text("2\n")
    monkeypatch.setattr(_linux, "_VM", tmp_path)
    memory = linux_memory()

    reservation = memory.reserve(64 * GIB)

    assert isinstance(reservation, StrictReservation)
    assert memory.describe()["commit"] == "strict, by mprotect (overcommit mode 2)"
    reservation.release()


def test_strict_memory_cannot_be_touched_before_it_is_committed() -> None:
    out = run_child(
        "import os\n"
        "reservation = memory(lazy=False).reserve(4 * PAGE)\n"
        "reservation.commit(PAGE, PAGE)\n"
        "ctypes.memset(reservation.address + PAGE, 1, PAGE)\n"
        "reservation.decommit(PAGE, PAGE)\n"
        "for offset in (0, PAGE):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        ctypes.memset(reservation.address + offset, 1, 1)\n"
        "        os._exit(0)\n"
        "    print(-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )

    assert out.split() == ["11", "11"]


def test_strict_decommit_gives_back_what_is_counted() -> None:
    def counted_nbytes() -> int:
        found = re.search(r"Committed_AS: +(\d+)", Path("/proc/meminfo").read_text())
        assert found is not None
        return int(found[1]) * KIB

    reservation = linux_memory(is_lazy_allowed=False).reserve(4 * GIB)
    before = counted_nbytes()

    reservation.commit(0, 4 * GIB)
    write(reservation.address, 1, PAGE)
    between = counted_nbytes()
    reservation.decommit(0, 4 * GIB)

    # Other processes commit too, but hardly 2 GiB in this millisecond.
    assert between - before > 2 * GIB
    assert abs(counted_nbytes() - before) < 2 * GIB
    reservation.release()


def test_a_data_limit_makes_reservations_strict_and_commits_fail() -> None:
    out = run_child(
        "limit(resource.RLIMIT_DATA, 512 * MIB)\n"
        "linux = memory()\n"
        "reservation = linux.reserve(64 * GIB)\n"
        "print(type(reservation).__name__)\n"
        "print(linux.describe()['commit'])\n"
        "reservation.commit(0, 64 * MIB)\n"
        "try:\n"
        "    reservation.commit(GIB, GIB)\n"
        "except OutOfMemoryError as error:\n"
        "    print(error)\n"
        "ctypes.memset(reservation.address, 1, 64 * MIB)\n"
        "reservation.remap(0, GIB, 64 * MIB)\n"
        "ctypes.memset(reservation.address + GIB, 1, 64 * MIB)\n"
        "reservation.decommit(GIB, 64 * MIB)\n"
        "reservation.release()\n"
    )

    assert out.splitlines() == [
        "StrictReservation",
        "strict, by mprotect (lazily, mmap failed with 12 (Cannot allocate memory))",
        "cpu: cannot place 1.0 GiB; mprotect failed with 12 (Cannot allocate memory). "
        "Try: free some memory, or end other programs that use this device.",
    ]


def test_a_commit_that_fails_halfway_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reservation = linux_memory(is_lazy_allowed=False).reserve(8 * PAGE)
    mprotect = _linux._mprotect

    def change_one_vma(address: int, nbytes: int, protection: int) -> int:
        mprotect(address, nbytes // 2, protection)
        ctypes.set_errno(errno.ENOMEM)
        return -1

    monkeypatch.setattr(_linux, "_mprotect", change_one_vma)
    with pytest.raises(OutOfMemoryError):
        reservation.commit(2 * PAGE, 2 * PAGE)

    maps = Path("/proc/self/maps").read_text()
    assert f"{reservation.address + 2 * PAGE:x}-" not in maps
    reservation.release()


def test_a_strict_remap_that_is_refused_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reservation = linux_memory(is_lazy_allowed=False).reserve(8 * PAGE)
    reservation.commit(0, PAGE)
    mprotect = _linux._mprotect

    def refuse(address: int, nbytes: int, protection: int) -> int:
        if address == reservation.address:
            return mprotect(address, nbytes, protection)
        ctypes.set_errno(errno.ENOMEM)
        return -1

    monkeypatch.setattr(_linux, "_mprotect", refuse)
    with pytest.raises(OutOfMemoryError):
        reservation.remap(0, 4 * PAGE, PAGE)

    write(reservation.address, 1)
    reservation.release()


def test_an_address_space_limit_is_out_of_memory_and_halving_helps() -> None:
    out = run_child(
        "limit(resource.RLIMIT_AS, GIB)\n"
        "linux, nbytes = memory(), 64 * GIB\n"
        "while True:\n"
        "    try:\n"
        "        reservation = linux.reserve(nbytes)\n"
        "        break\n"
        "    except OutOfMemoryError:\n"
        "        nbytes //= 2\n"
        "print(nbytes // MIB, linux.remap_refusal)\n"
        "reservation.commit(0, PAGE)\n"
        "ctypes.memset(reservation.address, 1, PAGE)\n"
        "reservation.remap(0, PAGE, PAGE)\n"
        "ctypes.memset(reservation.address + PAGE, 1, PAGE)\n"
    )

    assert out == "512 RLIMIT_AS or RLIMIT_DATA is set"


def test_a_limit_lowered_below_what_is_in_use_does_not_unmap_the_destination() -> None:
    out = run_child(
        "linux = memory()\n"
        "reservation = linux.reserve(4 * GIB)\n"
        "ctypes.memset(reservation.address, 1, PAGE)\n"
        "limit(resource.RLIMIT_AS, GIB)\n"
        "reservation.remap(0, GIB, PAGE)\n"
        "ctypes.memset(reservation.address + GIB, 1, PAGE)\n"
        "print('alive', ctypes.string_at(reservation.address, 1))\n"
    )

    assert out == "alive b'\\x00'"


def test_running_out_of_vmas_is_answered_and_not_fatal() -> None:
    out = run_child(
        "linux = memory(page=resource.getpagesize())\n"
        "reservation = linux.reserve(2 * GIB)\n"
        "linux._cut_limit = 1 << 30\n"
        "os_page = resource.getpagesize()\n"
        "for page in range(0, 34000):\n"
        "    source = 3 * page * os_page\n"
        "    ctypes.memset(reservation.address + source, 1, 1)\n"
        "    reservation.remap(source, GIB + source, os_page)\n"
        "    ctypes.memset(reservation.address + GIB + source, 2, 1)\n"
        "    assert ctypes.string_at(reservation.address + source, 1) == bytes(1)\n"
        "vmas = sum(1 for _ in open('/proc/self/maps'))\n"
        "print(vmas > 60000, linux.cut_count > 60000)\n"
        "reservation.release()\n"
    )

    assert out == "True True"


def test_running_out_of_vmas_in_strict_commits_is_out_of_memory() -> None:
    out = run_child(
        "linux = memory(lazy=False)\n"
        "reservation = linux.reserve(GIB)\n"
        "os_page = resource.getpagesize()\n"
        "count = 0\n"
        "try:\n"
        "    while True:\n"
        "        reservation.commit(2 * count * os_page, os_page)\n"
        "        count += 1\n"
        "except OutOfMemoryError as error:\n"
        "    print(30000 < count < 33000, error.report.native)\n"
        "reservation.decommit(0, os_page)\n"
        "reservation.release()\n"
    )

    assert out == "True mprotect failed with 12 (Cannot allocate memory)"


def test_a_forked_child_has_its_own_copy(lazy: LazyReservation) -> None:
    write(lazy.address, 1)
    lazy.remap(0, 9 * PAGE, PAGE)

    child = os.fork()
    if child == 0:
        write(lazy.address + 9 * PAGE, 2)
        lazy.remap(9 * PAGE, 3 * PAGE, PAGE)
        os._exit(read(lazy.address + 3 * PAGE)[0])

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert read(lazy.address + 9 * PAGE) == b"\x01"
