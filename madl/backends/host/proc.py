"""Memory, cgroup limits, huge pages and NUMA of Linux, from ``/proc`` and ``/sys``.

Every file is read when it is asked for: what it says can change at any time, and any of
them may be missing or unreadable, in containers, on old kernels and on Android.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_DATA, getrlimit

from madl.backends.host import cannot_choose
from madl.backends.protocol import MemoryInfo
from madl.sizes import format_nbytes

_PROC = Path("/proc")
_VM = Path("/proc/sys/vm")
_CGROUP = Path("/sys/fs/cgroup")
_THP = Path("/sys/kernel/mm/transparent_hugepage")
_LIMITS = {
    "Max address space": "RLIMIT_AS",
    "Max data size": "RLIMIT_DATA",
    "Max locked memory": "RLIMIT_MEMLOCK",
}
# By cgroup version: its folder, then the names of limit, use and droppable cache.
_CGROUP_1 = (
    *("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    "total_inactive_file",
)
_CGROUP_2 = "", "memory.max", "memory.current", "inactive_file"


def memory_info() -> MemoryInfo:
    """Return this machine's memory, or what its cgroups leave to the process."""
    known = _meminfo()
    page_nbytes = os.sysconf("SC_PAGE_SIZE")
    total = known.get("MemTotal") or os.sysconf("SC_PHYS_PAGES") * page_nbytes
    available = known.get("MemAvailable") or known.get("MemFree")  # Linux 3.14, before
    if available is None:  # a sandbox without /proc; it counts no file cache as free
        available = os.sysconf("SC_AVPHYS_PAGES") * page_nbytes
    for limit, used in _cgroup_limits():
        total = min(total, limit)
        available = min(available, max(limit - used, 0))
    return MemoryInfo(total, available)


def has_limit() -> bool:
    """Whether address space or data is limited for this process."""
    limits = (getrlimit(which)[0] for which in (RLIMIT_AS, RLIMIT_DATA))
    return any(limit != RLIM_INFINITY for limit in limits)


def is_everything_counted() -> bool:
    """Whether the kernel counts all that is writable, touched or not."""
    return _read(_VM / "overcommit_memory") == "2"


def most_vmas() -> int:
    """Return how many VMAs a process may have."""
    return int(_read(_VM / "max_map_count") or 65530)


def huge_page_nbytes() -> int:
    """Return the size of a transparent huge page; 0 where the kernel has none."""
    return int(_read(_THP / "hpage_pmd_size") or 0)


def explicit_page_nbytes() -> int:
    """Return the size of huge pages that are set aside; 0 where the kernel has none."""
    return _meminfo().get("Hugepagesize", 0)


def explicit_stock() -> str:
    """Return how many of them there are, in words."""
    known = _read(_PROC / "meminfo")
    counts = dict(re.findall(r"HugePages_(\w+): *(\d+)", known))
    return f"{counts.get('Free', 0)} of {counts.get('Total', 0)} free"


def check_huge(page_nbytes: int, huge_nbytes: int, what: str) -> None:
    """Raise where pages of a pool cannot be made of huge ones.

    Raises:
        MissingCapabilityError: The kernel has none, or they do not fit.
    """
    if huge_nbytes == 0:
        raise cannot_choose("huge_pages", f"{what} in this kernel")
    size, page = format_nbytes(huge_nbytes), format_nbytes(page_nbytes)
    if page_nbytes % huge_nbytes:
        missing = f"{what} for pages of {page}, no multiple of {size}"
        raise cannot_choose("huge_pages", missing, f"page_size='{size}', or ")


def choose_huge(
    page_nbytes: int, wanted: bool | None, *, modes_matter: bool = True
) -> bool:
    """Return whether to ask for huge pages; ``None`` is for where they fit.

    Without ``modes_matter`` they can be had even where their mode is "never".

    Raises:
        MissingCapabilityError: They were asked for and cannot be had.
    """
    huge_nbytes = huge_page_nbytes()
    if not wanted:
        fits = huge_nbytes > 0 and page_nbytes % huge_nbytes == 0
        return fits and wanted is None
    check_huge(page_nbytes, huge_nbytes, "huge pages")
    if modes_matter and huge_page_mode() == "never":
        size = format_nbytes(huge_nbytes)
        missing = f"huge pages of {size} while transparent_hugepage is 'never'"
        raise cannot_choose(
            "huge_pages", missing, "ask for 'madvise' in that setting, or "
        )
    return True


def huge_page_mode() -> str:
    """Return when this process gets huge pages: ``always``, ``madvise``, ``never``."""
    if "THP_enabled:\t0" in _read(_PROC / "self" / "status"):  # by prctl
        return "never"
    # Since Linux 6.8 each size has a mode of its own, which may be to inherit.
    own_folder = _THP / f"hugepages-{huge_page_nbytes() // 1024}kB"
    own = _chosen(_read(own_folder / "enabled"))
    return _chosen(_read(_THP / "enabled")) if own in ("", "inherit") else own


def settings() -> dict[str, str]:
    """Return the settings that decide what can be reserved; only those that exist."""
    found = {
        "overcommit_memory": _read(_VM / "overcommit_memory"),
        "max_map_count": _read(_VM / "max_map_count"),
        "transparent_hugepage": _read(_THP / "enabled"),
    }
    for line in _read(_PROC / "self" / "limits").splitlines():
        name, soft = line[:26].strip(), line[26:47].strip()
        if name in _LIMITS:
            found[_LIMITS[name]] = soft
    return {name: value for name, value in found.items() if value}


def _meminfo() -> dict[str, int]:
    """Return what the kernel says in KiB, in bytes."""
    lines = _read(_PROC / "meminfo").splitlines()
    found = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(amount.split()[0]) * 1024 for name, _, amount in found}


def _cgroup_limits() -> Iterator[tuple[int, int]]:
    """Yield limit and use, in bytes, of each cgroup around the process with a limit."""
    for line in _read(_PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        names = _CGROUP_1 if controllers else _CGROUP_2
        folder, limit_name, use_name, cache_name = names
        root = _CGROUP / folder
        for group in (leaf := root / path.lstrip("/"), *leaf.parents):
            limit = _read(group / limit_name)
            if limit.isdigit():
                lines = _read(group / "memory.stat").splitlines()
                cache = dict(line.split() for line in lines).get(cache_name, "0")
                # The kernel drops file cache before it refuses a process anything.
                yield int(limit), int(_read(group / use_name) or 0) - int(cache)
            if group == root:
                break


def _chosen(choices: str) -> str:
    """Return the word in brackets of a text such as ``always [madvise] never``."""
    return choices.partition("[")[2].partition("]")[0]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
