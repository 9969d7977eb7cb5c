"""What does a recycled page cost: given back and faulted again, or moved?

``python benchmarks/remap.py [--json] [--rounds N]``. Each round does both, for each
page size, with huge pages and without, and the table shows medians in ns per page.
The last column is the same write to a page that is there already: the floor.
"""

import argparse
import ctypes
import json
import random
import resource
import sys
from itertools import pairwise
from statistics import median
from time import perf_counter_ns

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


def measure(rounds: int) -> list[dict[str, object]]:
    """Return one row for each case, medians over interleaved rounds."""
    arenas = [Arena(page_nbytes, huge_pages) for page_nbytes, huge_pages in CASES]
    results = [[arena.round() for arena in arenas] for _ in range(rounds)]
    rows: list[dict[str, object]] = []
    for index, (page_nbytes, huge_pages) in enumerate(CASES):
        medians = {
            name: round(median(result[index][name] for result in results), 1)
            for name in results[0][index]
        }
        again = medians["decommit"] + medians["write cold"] - medians["write warm"]
        rows.append(
            {
                "page_nbytes": page_nbytes,
                "huge_pages": huge_pages,
                **medians,
                "ratio": round(again / medians["remap"], 1),
            }
        )
    return rows


def print_table(rows: list[dict[str, object]]) -> None:
    """Print the rows; the ratio is of what is paid beyond a warm write."""
    names = [name for name in rows[0] if name not in ("page_nbytes", "huge_pages")]
    lines = ["  ".join(["page     THP", *(f"{name:>12}" for name in names)])]
    for row in rows:
        page = format_nbytes(int(str(row["page_nbytes"])))
        head = f"{page:9}{'on ' if row['huge_pages'] else 'off'}"
        lines.append("  ".join([head, *(f"{row[name]!s:>12}" for name in names)]))
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    rows = measure(options.rounds)
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
