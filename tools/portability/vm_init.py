#!/usr/bin/python3.13
"""The first process of the virtual machine: tests, a report line each, power off."""

import ctypes
import os
import re
import subprocess
import sys

CHECKOUT = "/checkout"
SMOKE = "tools/portability/smoke.py"
POWER_OFF = 0x4321FEDC
# What the size of an OS page matters to; the rest would take an hour here.
TESTS = (
    "test_cpu.py",
    "test_fallback.py",
    "test_host_limits.py",
    "test_linux_commit.py",
    "test_linux_huge_pages.py",
    "test_linux_limits.py",
    "test_linux_numa.py",
    "test_linux_prefault.py",
    "test_linux_remap.py",
    "test_linux_reserve.py",
)
# More memory than the guest has; more calls than it makes in a minute.
TOO_MUCH = (
    "test_linux_commit.py::test_strict_decommit_gives_back_what_is_counted",
    "test_linux_limits.py::test_running_out_of_vmas_is_answered_and_not_fatal",
)
OVERCOMMIT = "/proc/sys/vm/overcommit_memory"
FILE_SYSTEMS = {"proc": "proc", "sys": "sysfs", "dev": "devtmpfs", "tmp": "tmpfs"}


def prepare() -> ctypes.CDLL:
    """Mount what a system has, and take the console."""
    libc = ctypes.CDLL(None, use_errno=True)
    for folder, kind in FILE_SYSTEMS.items():
        os.makedirs(f"/{folder}", exist_ok=True)
        libc.mount(kind.encode(), f"/{folder}".encode(), kind.encode(), 0, None)
    console = os.open("/dev/console", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(console, standard)
    os.environ.update(
        PATH="/usr/bin:/usr/sbin",
        HOME="/tmp",
        PYTHONPATH=f"{CHECKOUT}:/site",
        PYTHONDONTWRITEBYTECODE="1",
        HYPOTHESIS_PROFILE="dev",
    )
    return libc


def run(*arguments: str) -> tuple[int, str]:
    """Run Python; return its status and what it says."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=CHECKOUT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout.strip()


def main() -> int:
    """Run everything; return how many parts failed."""
    failed = 0
    replay = ("--example", "resnet50-train", "--device", "cpu", "--json")
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short")
    tests = [f"tests/backends/{name}" for name in TESTS]
    tests += [f"--deselect=tests/backends/{name}" for name in TOO_MUCH]
    for mode, part in (
        (0, (SMOKE,)),
        (2, (SMOKE,)),  # all that is writable counts, touched or not
        (0, ("-m", "madl", "replay", *replay)),
        (0, (*pytest, *tests)),
    ):
        with open(OVERCOMMIT, "w", encoding="ascii") as setting:
            setting.write(str(mode))
        status, said = run(*part)
        failed += status != 0
        if status != 0:
            sys.stdout.write(f"{said[-6000:]}\n")
        found = re.findall(r'"committed_over_live": [\d.]+|\d+ passed.*', said)
        last = found[-1] if found else said.rpartition("\n")[2]
        sys.stdout.write(f"GUEST {last}\n")
        sys.stdout.flush()
    return failed


if __name__ == "__main__":
    libc = prepare()
    sys.stdout.write(f"GUEST {main()}\n")
    sys.stdout.flush()
    libc.sync()
    libc.reboot(POWER_OFF)
