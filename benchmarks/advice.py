"""What does the kernel's advice on host memory cost, and what does it leave behind?

Faulting in: by the first write, by MADV_POPULATE_WRITE, or by MADV_COLLAPSE of one OS
page in each huge one. Giving back: by MADV_DONTNEED or by MADV_FREE. Linux only.
"""

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

from benchmarks.answer import Answer, Row, Table

if sys.platform == "linux":
    from madl.backends.host import linux_calls as calls
    from madl.backends.host import proc

NBYTES = 64 << 20
MIB = 1 << 20
QUESTION = "What does the kernel's advice on host memory cost?"
COLUMNS = ("how", "call, us/MiB", "writing then, us/MiB", "MiB resident between")
NORMAL, SMALL, HUGE = 0, 15, 14  # MADV_NORMAL, MADV_NOHUGEPAGE, MADV_HUGEPAGE
DONTNEED, FREE = 4, 8


class Case(NamedTuple):
    """Something done to 64 MiB."""

    name: str
    advice: int
    step: Callable[[int], object]
    is_written: bool
    """Whether all of it is written before."""

    def measure(self) -> tuple[float, float, float]:
        """Return us per MiB of the step, and of a write after it; MiB between."""
        address = calls.system.reserve(NBYTES, calls.READ_WRITE, calls.LAZY)
        calls.system.madvise(address, NBYTES, self.advice)
        before = _resident_nbytes()
        if self.is_written:
            ctypes.memset(address, 1, NBYTES)
        marks = [perf_counter_ns()]
        self.step(address)
        marks.append(perf_counter_ns())
        left = _resident_nbytes() - before
        marks.append(perf_counter_ns())
        ctypes.memset(address, 1, NBYTES)
        marks.append(perf_counter_ns())
        calls.system.unmap(address, NBYTES)
        unit = 1000 * NBYTES / MIB
        return (marks[1] - marks[0]) / unit, (marks[3] - marks[2]) / unit, left / MIB


def run(*, quick: bool) -> Answer:
    """Fault in and give back 64 MiB in every way, in turns."""
    if sys.platform != "linux":
        return Answer(QUESTION, (), notes=("not measured: it is Linux's advice",))
    if not proc.huge_page_nbytes():
        return Answer(QUESTION, (), notes=("not measured: no huge pages here",))
    rounds = 3 if quick else 9
    tables = (
        _table("faulting in 64 MiB", _faulting_in(), rounds),
        _table("giving back 64 MiB that were written", _giving_back(), rounds),
    )
    return Answer(QUESTION, tables, notes=(f"mode: {proc.huge_page_mode()}",))


def _faulting_in() -> tuple[Case, ...]:
    populate = partial(calls.populate, nbytes=NBYTES)
    collapse = partial(
        calls.collapse, nbytes=NBYTES, huge_nbytes=proc.huge_page_nbytes()
    )
    return (
        Case("small OS pages, by writing", SMALL, _nothing, False),
        Case("small OS pages, MADV_POPULATE_WRITE", SMALL, populate, False),
        Case("huge pages, by writing", HUGE, _nothing, False),
        Case("huge pages, MADV_POPULATE_WRITE", HUGE, populate, False),
        Case("MADV_COLLAPSE, whatever the mode", NORMAL, collapse, False),
    )


def _giving_back() -> tuple[Case, ...]:
    return (
        Case("small OS pages, MADV_DONTNEED", SMALL, _advise(DONTNEED), True),
        Case("small OS pages, MADV_FREE", SMALL, _advise(FREE), True),
        Case("huge pages, MADV_DONTNEED", HUGE, _advise(DONTNEED), True),
        Case("huge pages, MADV_FREE", HUGE, _advise(FREE), True),
    )


def _table(title: str, cases: tuple[Case, ...], rounds: int) -> Table:
    found = [[case.measure() for case in cases] for _ in range(rounds)]
    rows: list[Row] = [
        (case.name, *(median(column) for column in zip(*measured, strict=True)))
        for case, measured in zip(cases, zip(*found, strict=True), strict=True)
    ]
    return Table(title, COLUMNS, tuple(rows))


def _advise(advice: int) -> Callable[[int], object]:
    return lambda address: calls.system.madvise(address, NBYTES, advice)


def _nothing(_address: int) -> None:
    pass


def _resident_nbytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE
