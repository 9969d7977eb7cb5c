"""How does madl compare on a GPU? ``python -m benchmarks.gpu [--quick] [--json FILE]``.

It needs a driver, so it is not one of the benchmarks that ``python -m benchmarks``
runs. Figures are wall time: a driver call may wait without using the CPU.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import machine
from benchmarks.answer import Answer, Row, Table
from benchmarks.gpu_contenders import CONTENDERS, Contender
from benchmarks.gpu_copies import copies
from benchmarks.timing import in_turns, ratio, spread
from madl.backends.cuda import CudaBackend
from madl.diagnostics import example_names, example_path, open_trace
from madl.diagnostics.traces.trace import Trace
from madl.sizes import format_nbytes

MIB = 1 << 20
SIZES = (512, 64 << 10, MIB, 16 * MIB, 64 * MIB)
PAGES = (2 * MIB, 8 * MIB, 32 * MIB)
COMMITTED_NBYTES = 512 * MIB
LASTING_NS = 5_000_000
MOST_PAIRS = 2000
TRACE_MARGIN = 1.5
"""A trace is replayed when the device has this much more than its peak."""


def run(*, quick: bool) -> Answer:
    """Measure every contender that works here, in turns."""
    contenders, notes = _open_all()
    rounds = 5 if quick else 15
    tables = [*_pairs(contenders, rounds), _growth(rounds), *copies(rounds)]
    for contender in contenders.values():
        contender.empty()
    names = example_names()[:1] if quick else example_names()
    available = CudaBackend(0).memory_info().available_nbytes
    for name in names:
        trace = open_trace(example_path(name))
        if trace.peak_live_nbytes * TRACE_MARGIN > available:
            needed = format_nbytes(trace.peak_live_nbytes)
            notes.append(f"{name}: not replayed: it needs more than {needed}")
            continue
        tables.append(_trace(name, trace, contenders, notes, 3 if quick else 5))
    question = "What does memory of a GPU cost, to take, to give back and to copy?"
    return Answer(question, tuple(tables), {}, tuple(notes))


def _open_all() -> tuple[dict[str, Contender], list[str]]:
    contenders: dict[str, Contender] = {}
    notes = []
    for name, maker in CONTENDERS.items():
        try:
            contenders[name] = made = maker()
            made.free(made.allocate(512))
        except Exception as error:  # a peer that is missing or broken stops no other
            contenders.pop(name, None)
            notes.append(f"{name}: not measured: {type(error).__name__}: {error}")
    return contenders, notes


def _pairs(contenders: Mapping[str, Contender], rounds: int) -> list[Table]:
    results = {}
    for size in SIZES:
        measures: dict[str, Callable[[], float]] = {
            name: lambda one=contender, nbytes=size: _pair_ns(one, nbytes)  # type: ignore[misc]
            for name, contender in contenders.items()
        }
        results[size] = in_turns(measures, rounds=rounds)
    columns = ("", *(format_nbytes(size) for size in SIZES))
    costs: list[Row] = [
        (name, *(spread(results[size][name]) for size in SIZES)) for name in contenders
    ]
    over: list[Row] = [
        (name, *(ratio(results[size][name], results[size]["madl"]) for size in SIZES))
        for name in contenders
    ]
    return [
        Table("ns a warm pair, median (least-most)", columns, tuple(costs)),
        Table("as a multiple of madl's in the same round", columns, tuple(over)),
    ]


def _pair_ns(contender: Contender, nbytes: int) -> float:
    allocate, free = contender.allocate, contender.free

    def loop(count: int) -> int:
        started = time.perf_counter_ns()
        for _ in range(count):
            free(allocate(nbytes))
        contender.finish()
        return time.perf_counter_ns() - started

    once = max(loop(1), 1)
    count = min(max(LASTING_NS // once, 1), MOST_PAIRS)
    return loop(count) / count


def _growth(rounds: int) -> Table:
    """Return what the steps of growing cost, for each page size."""
    backend = CudaBackend(0)
    driver_calls = CONTENDERS["cuMemAlloc"]()
    steps = ("commit", "move", "decommit")
    found: dict[str, list[list[float]]] = {}
    for _ in range(rounds):
        for page in PAGES:
            row = found.setdefault(f"pages of {format_nbytes(page)}", [[], [], []])
            for figures, us in zip(row, _growth_us(backend, page), strict=True):
                figures.append(us)
        row = found.setdefault("cuMemAlloc and cuMemFree", [[], [], []])
        started = time.perf_counter_ns()
        address = driver_calls.allocate(COMMITTED_NBYTES)
        row[0].append((time.perf_counter_ns() - started) / 1000)
        started = time.perf_counter_ns()
        driver_calls.free(address)
        row[2].append((time.perf_counter_ns() - started) / 1000)
    rows: list[Row] = [
        (name, *(spread(figures) if figures else None for figures in row))
        for name, row in found.items()
    ]
    title = f"us for {format_nbytes(COMMITTED_NBYTES)}, median (least-most)"
    return Table(title, ("", *steps), tuple(rows))


def _growth_us(backend: CudaBackend, page: int) -> list[float]:
    backend.choose_pages(page)
    reservation = backend.reserve(2 * COMMITTED_NBYTES)
    clock = time.perf_counter_ns
    times = [clock()]
    backend.commit(reservation, 0, COMMITTED_NBYTES)
    times.append(clock())
    backend.remap(reservation, 0, COMMITTED_NBYTES, COMMITTED_NBYTES)
    times.append(clock())
    backend.decommit(reservation, COMMITTED_NBYTES, COMMITTED_NBYTES)
    times.append(clock())
    backend.release(reservation)
    return [(b - a) / 1000 for a, b in itertools.pairwise(times)]


def _trace(
    name: str,
    trace: Trace,
    contenders: Mapping[str, Contender],
    notes: list[str],
    rounds: int,
) -> Table:
    """Return what a recorded program costs each, and how much each takes for it."""
    figures: dict[str, list[float]] = {}
    usage: dict[str, float | None] = {}
    for _ in range(rounds):
        for contender in contenders:
            # A new one each time: what the last round has left would help it.
            one = CONTENDERS[contender]()
            one.empty()
            try:
                figures.setdefault(contender, []).append(_replay_ns(one, trace))
            except MemoryError as error:
                notes.append(f"{contender}: {name}: {error}")
            else:
                taken = one.taken_nbytes()
                usage[contender] = taken / trace.peak_live_nbytes if taken else None
            one.empty()
    rows: list[Row] = [
        (contender, spread(figures[contender]), usage.get(contender))
        for contender in contenders
        if figures.get(contender)
    ]
    return Table(
        f"{name}: the whole trace, from an empty pool",
        ("", "ns an event", "taken / peak live"),
        tuple(rows),
    )


def _replay_ns(contender: Contender, trace: Trace) -> float:
    allocate, free, sizes = contender.allocate, contender.free, trace.nbytes_of
    held: dict[int, object] = {}
    started = time.perf_counter_ns()
    for operation in trace.operations:
        if operation < 0:
            free(held.pop(~operation))
        else:
            held[operation] = allocate(max(sizes[operation], 1))
    contender.finish()
    elapsed = time.perf_counter_ns() - started
    while held:
        free(held.popitem()[1])
    return elapsed / len(trace.operations)


def main() -> None:
    """Print the answer as Markdown, and write it as JSON where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    facts = machine.header() | CudaBackend(0).describe()
    print(machine.markdown(facts), flush=True)
    answer = run(quick=options.quick)
    print(f"\n{answer.markdown()}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        everything = {"machine": facts, "answers": {"gpu": answer.as_dict()}}
        options.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
