"""What is promised of each figure: the aim, and what no release may fall below."""

from dataclasses import dataclass

from benchmarks import fill, index, recording, traces, usage


@dataclass(frozen=True)
class Bound:
    """A figure's target, and its gate: ratios, counts and bytes, never times.

    A figure that has neither is printed beside the others, and not promised.
    """

    benchmark: str
    figure: str
    target: float | None
    gate: float | None
    is_least: bool = False
    """Whether the figure should be at least, not at most, so much."""
    why_missed: str = ""
    """Why the gate does not hold, or not always, where that is known; ends no run."""

    def holds(self, value: float, bound: float | None) -> bool | None:
        """Whether a value is on the right side; None where there is no bound."""
        if bound is None:
            return None
        return value >= bound if self.is_least else value <= bound


def _most(benchmark: str, figure: str, target: float, gate: float | None) -> Bound:
    return Bound(benchmark, figure, target, gate)


def _least(benchmark: str, figure: str, target: float, gate: float | None) -> Bound:
    return Bound(benchmark, figure, target, gate, is_least=True)


_MISSED = {(traces.GLIBC, "large-block"), ("NumPy on tcmalloc", "large-block")}
_MOVES = "met on a quiet machine; on a busy one the kernel's mmap and mremap decide"


def _traces() -> list[Bound]:
    promised = {
        (traces.GLIBC, "large-block"): (25, 15),
        ("NumPy on jemalloc", "large-block"): (4.5, 3),
        ("NumPy on mimalloc", "large-block"): (40, 20),
        ("NumPy on tcmalloc", "large-block"): (3.5, 2.2),
        (traces.GLIBC, "small-block"): (2.8, 2),
        ("NumPy on jemalloc", "small-block"): (2.3, 1.5),
        ("NumPy on mimalloc", "small-block"): (2.4, 1.5),
        ("NumPy on tcmalloc", "small-block"): (2, 1.2),
        (traces.OPENCL, "small-block"): (2.2, 1.5),
    }
    return [
        Bound(
            "traces",
            f"{peer} over {traces.MADL}, {group}",
            target,
            gate,
            is_least=True,
            why_missed=_MOVES if (peer, group) in _MISSED else "",
        )
        for (peer, group), (target, gate) in promised.items()
    ]


BOUNDS = (
    _most("usage", f"{usage.DEFAULT}, geomean", 1.02, 1.035),
    _most("usage", f"{usage.DEFAULT}, worst", 1.08, 1.11),
    _most("usage", f"{usage.MIXED}, geomean", 1.01, 1.02),
    _most("usage", f"{usage.MIXED}, worst", 1.04, 1.06),
    _most("usage", f"{usage.MIXED_3}, geomean", 1.01, 1.02),
    _most("usage", f"{usage.MIXED_3}, worst", 1.04, 1.06),
    _most("usage", f"{usage.SMALL}, geomean", 1.005, 1.015),
    _most("usage", f"{usage.SMALL}, worst", 1.012, 1.015),
    _most("usage", f"{usage.BARE}, geomean", 1.09, 1.12),
    _most("usage", f"{usage.CAPACITY}, geomean", 1.02, 1.03),
    _most("faults", "faults a warm pass over those without recycling", 1.05, 1.2),
    _most("pair", "over the empty handle", 1.5, 2.0),
    _least("pair", "np.empty over it, 4 KB-1 MB", 2.3, 1.8),
    _least("pair", "np.empty over it, 16 MB", 5, 4),
    _least("pair", "np.empty over it, 64 MB", 100, 50),
    _least("pair", "PyOpenCL's pool over it", 4, 3),
    _least("pair", "UMF's pool over it", 10, 6),
    Bound("pair", "the fallback over np.empty", None, None),
    _most("recording", recording.FIGURE, 1.5, 1.5),
    *_traces(),
    _most("index", f"nodes visited / ({index.MOST_NODES}), most", 1, 1),
    _most("index", "search, 100 to 100,000 blocks", 5, 8),
    _most("index", "pair, 100 to 100,000 blocks", 5, 8),
    _least("index", "linear search over it, 100,000 blocks", 500, 500),
    _most("index", "ns of a search, 100,000 blocks", 300, None),
    _most("index", "ns of a pair, 100,000 blocks", 900, None),
    _most("bookkeeping", "bytes a free block", 48, 48),
    _most("bookkeeping", "bytes a live block", 96, 96),
    _most("threads", "8 threads over 1, ns a pair", 1.05, 1.5),
    _most("fill", "over refilling one held buffer", 1.05, 1.2),
    _least("fill", "NumPy over it, 64 MB", 1.7, 1.4),
    _least("fill", f"{fill.NUMPY_SMALL_PAGES} over it, 64 MB", 5, 4),
    _most("numpy_route", "over NumPy's own, 64 B", 1.05, 1.05),
    _least("numpy_route", "np.empty over it, 64 MB", 30, 15),
    _least("numpy_route", "a * b + c over it, 64 MB", 1.2, 1.2),
    _least("expressions", "PyOpenCL pool over madl", 1, None),
    _most("import_time", "import madl over import numpy", 1 / 3, None),
)
"""Times are targets on one machine, so they have no gate."""
