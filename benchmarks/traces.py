"""What does an event of a real program cost, and what does the pool commit for it?"""

import ctypes.util
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks import recorded
from benchmarks.answer import Answer, Row, Table
from benchmarks.timing import geomean, in_turns, ratio, spread
from benchmarks.worker import Worker, WorkerError
from madl import hotpath

LOOP, MADL, GLIBC = "empty loop", "madl", "NumPy on glibc"
SIM, FIXED = "madl, device sim", "madl, no recycling"
OPENCL = "PyOpenCL pool"
PRELOADED = {
    "NumPy on jemalloc": ("jemalloc", "libjemalloc2"),
    "NumPy on mimalloc": ("mimalloc", "libmimalloc2.0"),
    "NumPy on tcmalloc": ("tcmalloc_minimal", "libtcmalloc-minimal4"),
}
"""By contender: the library and its Debian package."""


@dataclass(frozen=True)
class Contender:
    """A process that replays traces in one way."""

    kind: str
    worker: Worker

    def choose(self, name: str) -> None:
        """Turn to a trace."""
        self.worker.call("benchmarks.trace_loop:choose", name, self.kind)

    def ns_per_event(self) -> float:
        """Do a pass."""
        call = "benchmarks.trace_loop:ns_per_event"
        return float(self.worker.call(call, self.kind))

    def usage(self) -> tuple[float, int]:
        """Return peak committed over peak live so far, and the pages recycled."""
        usage, recycled_pages = self.worker.call("benchmarks.trace_loop:usage")
        return usage, recycled_pages


def run(*, quick: bool) -> Answer:
    """Replay every trace with every contender in turns."""
    with ExitStack() as stack:
        contenders, notes = _contenders(stack)
        results = {
            name: _replay(name, contenders, 3 if quick else 5)
            for name in (recorded.quick_names() if quick else recorded.paths())
        }
    speed: list[Row] = [
        (name, *(spread(result.ns[one]) for one in contenders))
        for name, result in results.items()
    ]
    usage: list[Row] = [
        (
            name,
            result.first_ns,
            f"{result.first_usage:.4f}",
            f"{result.last_usage:.4f}",
            result.recycled_pages,
        )
        for name, result in results.items()
    ]
    notes += [
        recorded.note(),
        "CPU time of warm passes, the loop included; memory is not written to. madl "
        "runs on device cpu, with the default options; on sim no device is called, so "
        "what differs is what the device takes to move recycled pages.",
    ]
    return Answer(
        "What does an event of a real program cost, and what is committed for it?",
        (
            Table(
                "ns an event, median (least-most)", ("trace", *contenders), tuple(speed)
            ),
            Table(
                "madl, device cpu, in the same run",
                (
                    "trace",
                    "ns an event, first pass",
                    "committed / live, first pass",
                    "after the last pass",
                    "pages recycled, a warm pass",
                ),
                tuple(usage),
            ),
        ),
        _figures(results, list(contenders)) if hotpath.IS_COMPILED else {},
        tuple(notes),
    )


@dataclass(frozen=True)
class Result:
    """Of one trace."""

    ns: dict[str, list[float]]
    first_ns: float
    first_usage: float
    last_usage: float
    recycled_pages: float
    """In a warm pass."""


def _contenders(stack: ExitStack) -> tuple[dict[str, Contender], list[str]]:
    def started(kind: str, **environment: str) -> Contender:
        return Contender(kind, stack.enter_context(Worker(**environment)))

    found = {
        LOOP: started("loop"),
        MADL: started("cpu"),
        SIM: started("sim"),
        FIXED: started("no recycling"),
        GLIBC: started("numpy"),
    }
    notes = []
    for name, (library, package) in PRELOADED.items():
        file = ctypes.util.find_library(library)
        contender = started("numpy", LD_PRELOAD=file or "")
        if file and contender.worker.call("benchmarks.trace_loop:is_mapped", file):
            found[name] = contender
        else:
            notes.append(f"{name}: not measured: no lib{library} (Debian: {package})")
    opencl = started("opencl")
    try:
        opencl.worker.call("benchmarks.contenders:has_opencl_pool")
        found[OPENCL] = opencl
    except WorkerError as error:
        notes.append(f"{OPENCL}: not measured: {error}")
    return found, notes


def _replay(name: str, contenders: dict[str, Contender], rounds: int) -> Result:
    for contender in contenders.values():
        contender.choose(name)
    madl = contenders[MADL]
    first_ns = madl.ns_per_event()
    first_usage, first_pages = madl.usage()
    measures = {one: contender.ns_per_event for one, contender in contenders.items()}
    ns = in_turns(measures, rounds=rounds)
    last_usage, last_pages = madl.usage()
    pages = (last_pages - first_pages) / (rounds + 1)  # one more to warm up
    return Result(ns, first_ns, first_usage, last_usage, pages)


def _figures(results: dict[str, Result], contenders: list[str]) -> dict[str, float]:
    groups = {
        "large-block": [name for name in results if not recorded.is_host(name)],
        "small-block": [name for name in results if name in recorded.SMALL_BLOCK],
    }

    def over(one: str, madl: str, names: list[str]) -> float:
        return geomean(
            [
                ratio(results[name].ns[one], results[name].ns[madl]).median
                for name in names
            ]
        )

    return {
        f"{one} over {madl}, {group}": over(one, madl, names)
        for group, names in groups.items()
        for one in contenders
        for madl in (MADL, SIM, FIXED)
        if names and one not in (LOOP, MADL, SIM, FIXED)
    }
