"""What does a recycled page cost: given back and faulted again, or moved?

Each round does both, for each page size, with huge pages and without. ``write warm``
is the same write to a page that is there already: the floor.
"""

import ctypes
import random
import resource
from itertools import pairwise
from statistics import median
from time import perf_counter_ns

from benchmarks.answer import Answer, Row, Table
from madl.backends.cpu import CpuBackend
from madl.backends.protocol import Capability, Reservation
from madl.sizes import format_nbytes

PAGES = 64
CASES = [(64 << 10, False), (2 << 20, False), (2 << 20, True)]
COLUMNS = ("decommit", "write cold", "remap", "write moved", "write warm")


class Arena:
    """One reservation of which some scattered pages are committed and written."""

    def __init__(self, page_nbytes: int, huge_pages: bool) -> None:
        self.backend = CpuBackend(page_nbytes=page_nbytes)
        self.backend.choose_pages(page_nbytes, huge=huge_pages)
        if Capability.REMAP not in self.backend.capabilities:
            raise SystemExit(f"no remap: {self.backend.describe()['remap']}")
        self.page_nbytes = page_nbytes
        self.reservation: Reservation = self.backend.reserve(16 * PAGES * page_nbytes)
        offsets = [page * page_nbytes for page in range(16 * PAGES)]
        random.Random(page_nbytes).shuffle(offsets)
        self.live, self.spare = offsets[:PAGES], offsets[PAGES : 2 * PAGES]
        self.write(self.live)

    def write(self, offsets: list[int]) -> None:
        """Write every byte of each page."""
        address = self.reservation.address
        assert address is not None
        for offset in offsets:
            ctypes.memset(address + offset, 1, self.page_nbytes)

    def round(self) -> dict[str, float]:
        """Recycle every live page both ways; ns and faults per page."""
        backend, reservation, nbytes = self.backend, self.reservation, self.page_nbytes
        marks, faults = [perf_counter_ns()], [fault_count()]

        def mark() -> None:
            marks.append(perf_counter_ns())
            faults.append(fault_count())

        for offset in self.live:
            backend.decommit(reservation, offset, nbytes)
        mark()
        self.write(self.spare)
        mark()
        for source, destination in zip(self.spare, self.live, strict=True):
            backend.remap(reservation, source, destination, nbytes)
        mark()
        self.write(self.live)
        mark()
        self.write(self.live)
        mark()
        result = {
            name: (end - start) / PAGES
            for name, (start, end) in zip(COLUMNS, pairwise(marks), strict=True)
        }
        result["faults cold"] = (faults[2] - faults[1]) / PAGES
        result["faults moved"] = (faults[4] - faults[3]) / PAGES
        return result


def fault_count() -> int:
    """Return the page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def run(*, quick: bool) -> Answer:
    """Recycle pages both ways, in every case in turns."""
    question = "What does a recycled page cost: faulted again, or moved?"
    missing = CpuBackend().describe()["remap"]
    if Capability.REMAP not in CpuBackend().capabilities:
        return Answer(question, (), notes=(f"not measured: no remap: {missing}",))
    arenas = [Arena(page_nbytes, huge_pages) for page_nbytes, huge_pages in CASES]
    results = [[arena.round() for arena in arenas] for _ in range(5 if quick else 15)]
    names = tuple(results[0][0])
    rows: list[Row] = []
    for index, (page_nbytes, huge_pages) in enumerate(CASES):
        medians = {
            name: median(result[index][name] for result in results) for name in names
        }
        again = medians["decommit"] + medians["write cold"] - medians["write warm"]
        head = (
            f"{format_nbytes(page_nbytes)}, huge pages {'on' if huge_pages else 'off'}"
        )
        rows.append((head, *medians.values(), again / medians["remap"]))
    title = "ns a page, medians; the ratio is of what is paid beyond a warm write"
    columns = ("pages", *names, "faulted / moved")
    return Answer(question, (Table(title, columns, tuple(rows)),))
