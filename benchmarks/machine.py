"""The header of every run: on what, and with which madl, it was measured."""

import os
import platform
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import madl
from madl import core, hotpath

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
CPUS = Path("/proc/cpuinfo")


def header() -> dict[str, str]:
    """Return the facts, by name."""
    gil = not sysconfig.get_config_var("Py_GIL_DISABLED")
    return {
        "madl": f"{_version('madl')} in {Path(madl.__file__).parent}",
        "core": "compiled" if core.IS_COMPILED else "pure Python",
        "hot path": "compiled" if hotpath.IS_COMPILED else "pure Python",
        "guarded pools": "only those with C entry points" if gil else "all of them",
        "python": f"{platform.python_implementation()} {platform.python_version()}"
        + ("" if gil else ", free-threaded"),
        "numpy": _version("numpy"),
        "system": platform.platform(),
        "cpu": f"{_cpu()}, {os.cpu_count()} of them",
        "huge pages": _huge_pages(),
        "load": _load(),
    }


def _load() -> str:
    if not hasattr(os, "getloadavg"):
        return "unknown"
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def markdown(facts: dict[str, str]) -> str:
    """Return the facts as a Markdown list."""
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    if CPUS.exists():
        for line in CPUS.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _huge_pages() -> str:
    if not HUGE_PAGES.exists():
        return "not there"
    return HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
