"""What does a warm pair cost: allocate, then free or drop?"""

from collections.abc import Callable

import benchmarks.contenders as make
from benchmarks.answer import Answer, Row, Table
from benchmarks.contenders import Pairs
from benchmarks.floors import SlotsMaker, compiled_floor
from benchmarks.timing import Spread, cpu_ns, in_turns, ratio, spread
from benchmarks.worker import Worker
from madl import Pool, hotpath
from madl.sizes import format_nbytes

SIZES = (512, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
LASTING_NS = 1_000_000
MOST_PAIRS = 4000

FLOOR = "empty handle, compiled"
MADL, DROP = "madl, .free()", "madl, dropped"
FALLBACK = "madl's interpreted fallback, .free()"
NUMPY, OPENCL, UMF = "np.empty", "PyOpenCL pool, .release()", "UMF disjoint, ctypes"


def contenders() -> dict[str, Callable[[], Pairs]]:
    """Return what makes each contender; making one may raise ImportError."""
    return {
        FLOOR: lambda: make.freeing(compiled_floor()),
        "empty handle, Python with slots": lambda: make.freeing(SlotsMaker().allocate),
        MADL: lambda: make.freeing(Pool("cpu").allocate),
        DROP: lambda: make.dropping(Pool("cpu").allocate),
        "madl, guarded pool, .free()": lambda: make.freeing(
            make.guarded_pool().allocate
        ),
        "madl, guarded pool, dropped": lambda: make.dropping(
            make.guarded_pool().allocate
        ),
        "madl's C entry points, from C": make.native_pairs,
        NUMPY: lambda: make.numpy_pairs,
        "np.empty, numpy-allocator": make.numpy_allocator_pairs,
        "bytearray (zeroes)": lambda: make.dropping(bytearray),
        OPENCL: lambda: make.freeing(make.opencl_pool().allocate, "release"),
        "PyOpenCL pool, dropped": lambda: make.dropping(make.opencl_pool().allocate),
        UMF: make.umf_pairs,
    }


def fallback_ns(nbytes: int) -> float:
    """Return what a pair costs in the fallback; called in a worker."""
    global _fallback  # a worker answers one call at a time
    if _fallback is None:
        assert not hotpath.IS_COMPILED
        _fallback = make.freeing(Pool("cpu").allocate)
    return _ns(_fallback, nbytes)


_fallback: Pairs | None = None


def run(*, quick: bool) -> Answer:
    """Measure every contender in turns, one size after the other."""
    pairs: dict[str, Pairs] = {}
    notes = [
        "CPU time of the thread; the empty loop, about 10 ns, is in every figure.",
        "The fallback runs in a process of its own, over the index of this "
        "installation; its figure has no target and no gate.",
    ]
    for name, maker in contenders().items():
        try:
            pairs[name] = maker()
        except ImportError as error:
            notes.append(f"{name}: not measured: {error}")
    with Worker(TEST_MADL_BENCH_HOT_PATH="interpreted") as worker:
        rounds = 7 if quick else 15
        results = {size: _round(pairs, worker, size, rounds) for size in SIZES}
    columns = tuple(format_nbytes(size) for size in SIZES)
    names = [*pairs, FALLBACK]
    costs: list[Row] = [
        (name, *(spread(results[size][name]) for size in SIZES)) for name in names
    ]
    over = {name: [_over(results[size], name) for size in SIZES] for name in names}
    return Answer(
        "What does a warm pair cost: allocate, then free or drop?",
        (
            Table(
                "ns a pair, median (least-most)",
                ("", *columns),
                tuple(costs),
                is_plotted=True,
            ),
            Table(
                "as a multiple of madl's allocate and .free() in the same round",
                ("", *columns),
                tuple((name, *over[name]) for name in names),
            ),
        ),
        _figures({name: [one.median for one in row] for name, row in over.items()}),
        tuple(notes),
    )


def _round(
    pairs: dict[str, Pairs], worker: Worker, nbytes: int, rounds: int
) -> dict[str, list[float]]:
    measures: dict[str, Callable[[], float]] = {
        name: lambda loop=loop: _ns(loop, nbytes)  # type: ignore[misc]
        for name, loop in pairs.items()
    }
    measures[FALLBACK] = lambda: worker.call(f"{__name__}:fallback_ns", nbytes)
    return in_turns(measures, rounds=rounds)


def _ns(loop: Pairs, nbytes: int) -> float:
    return cpu_ns(
        lambda count: loop(nbytes, count), lasting_ns=LASTING_NS, most=MOST_PAIRS
    )


def _over(results: dict[str, list[float]], name: str) -> Spread:
    return ratio(results[name], results[MADL])


def _figures(over: dict[str, list[float]]) -> dict[str, float]:
    """Return the worst size's figure for each promise."""
    figures = {"the fallback over np.empty": _fallback_over_numpy(over)}
    if hotpath.IS_COMPILED:
        if FLOOR in over:
            figures["over the empty handle"] = max(1 / one for one in over[FLOOR])
        figures["np.empty over it, 4 KB-1 MB"] = min(over[NUMPY][1:4])
        figures["np.empty over it, 16 MB"] = over[NUMPY][4]
        figures["np.empty over it, 64 MB"] = over[NUMPY][5]
        if OPENCL in over:
            figures["PyOpenCL's pool over it"] = min(over[OPENCL])
        if UMF in over:
            figures["UMF's pool over it"] = min(over[UMF])
    return figures


def _fallback_over_numpy(over: dict[str, list[float]]) -> float:
    return max(a / b for a, b in zip(over[FALLBACK], over[NUMPY], strict=True))
