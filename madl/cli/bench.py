"""``madl bench``: time a pool against the device's own allocations, on this machine."""

import platform
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from statistics import median
from typing import Any, cast

import click
from rich.console import Console
from rich.table import Table

from madl import hotpath
from madl.backends import registry
from madl.backends.protocol import (
    Backend,
    Capability,
    CommitBackend,
    HandlePagesBackend,
)
from madl.cli.output import print_json
from madl.cli.pages import Command
from madl.cli.parameters import DeviceName, json_option
from madl.errors import OutOfMemoryError
from madl.pool import Pool
from madl.sizes import align_up, format_nbytes

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
ROUNDS, MEASUREMENT_NS = 31, 2_000_000  # of two to four milliseconds each
CAVEAT = (
    "Median (least-most) of rounds in turns; the empty loop is in every figure. "
    "Nothing is written to the memory. Absolute times mean nothing across machines."
)
Figures = dict[str, Any]
Loop = Callable[[int], object]  # called with the number of its turns


@click.command(
    cls=Command, examples=["madl bench", "madl bench --device opencl:0 --json"]
)
@click.option(
    "--device",
    type=DeviceName(),
    default="cpu",
    show_default=True,
    help="As in opencl:0.",
)
@json_option
def bench(device: str, as_json: bool) -> None:
    """Compare a pool with asking the device, for a second or two.

    A pair is one allocate and one free. The pool is warm: it has the memory already.
    The device is asked for the same bytes, and given them back, in the fewest calls.
    """
    backend = registry.open_device(device)
    if Capability.SHARE in backend.capabilities:
        raise click.UsageError(
            f"{backend.device} has no pool to compare: its blocks are not handed out "
            "again, since other processes may still see them. Try: --device cpu"
        )
    with Pool(device, pooling=True) as pool:
        sizes, notes = _measure_sizes(pool, backend)
    figures: Figures = {
        "device": backend.device,
        "core": "compiled" if hotpath.IS_COMPILED else "pure Python",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "caveat": CAVEAT,
        "sizes": sizes,
        "notes": notes,
    }
    if as_json:
        print_json(figures)
    else:
        _print_table(figures)
        click.echo("".join(f"{note}\n" for note in notes), nl=False, err=True)


def _measure_sizes(pool: Pool, backend: Backend) -> tuple[list[Figures], list[str]]:
    """Return figures and notes; raise where the device has none of the sizes."""
    measured, notes = list[Figures](), list[str]()
    for nbytes in SIZES:
        asked, size = align_up(nbytes, backend.granularity), format_nbytes(nbytes)
        if isinstance(backend, HandlePagesBackend):
            backend.choose_pages(asked, huge=None)  # one page, so one handle
        try:
            figures = _measure(_loops(pool, backend, nbytes, asked))
        except OutOfMemoryError as error:
            if nbytes == SIZES[-1] and not measured:
                raise
            notes.append(f"{size} is left out: {error}")
            continue
        measured.append({"nbytes": nbytes, "device_nbytes": asked, **figures})
        if asked > nbytes:
            notes.append(f"{size}: the device gives {format_nbytes(asked)} at least")
    return measured, notes


def _loops(pool: Pool, backend: Backend, nbytes: int, asked: int) -> dict[str, Loop]:
    committing = cast("CommitBackend", backend)
    commits = Capability.COMMIT in backend.capabilities

    def device(turns: int) -> None:
        for _ in repeat(None, turns):
            reservation = backend.reserve(asked)
            try:
                if commits:
                    committing.commit(reservation, 0, asked)
            finally:
                backend.release(reservation)

    def pair(turns: int) -> None:
        for _ in repeat(None, turns):
            pool.allocate(nbytes).free()

    def empty(turns: int) -> None:
        for _ in repeat(None, turns):
            pass

    return {"device": device, "pool": pair, "loop": empty}


def _measure(loops: dict[str, Loop]) -> Figures:
    """Measure in turns: what disturbs the machine disturbs all of them."""
    turns = dict.fromkeys(loops, 1)
    for name, loop in loops.items():
        loop(1)  # warm: the size is new to the pool
        while _elapsed_ns(loop, turns[name]) < MEASUREMENT_NS:
            turns[name] *= 2
    found: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(ROUNDS):
        for name, loop in loops.items():
            found[name].append(_elapsed_ns(loop, turns[name]) / turns[name])
    device, pool = found["device"], found["pool"]
    return {
        "rounds": ROUNDS,
        "pool_ns": _spread(pool),
        "device_us": _spread([ns / 1000 for ns in device]),
        "device_over_pool": _spread([a / b for a, b in zip(device, pool, strict=True)]),
        "loop_ns": _spread(found["loop"]),
    }


def _elapsed_ns(loop: Loop, turns: int) -> int:
    started = time.perf_counter_ns()
    loop(turns)
    return time.perf_counter_ns() - started


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "least": min(values), "most": max(values)}


def _print_table(figures: Figures) -> None:
    core = f"core {figures['core']}, {figures['python']}"
    table = Table(title=f"a pair on {figures['device']}\n{core}", caption=CAVEAT)
    for heading in ("size", "pool, ns", "device, us", "device / pool"):
        table.add_column(heading, justify="right")
    for row in figures["sizes"]:
        columns = (row["pool_ns"], row["device_us"], row["device_over_pool"])
        table.add_row(format_nbytes(row["nbytes"]), *map(_shown, columns))
    table.add_row("empty loop", _shown(figures["sizes"][0]["loop_ns"]))
    Console().print(table)


def _shown(spread: dict[str, float]) -> str:
    middle, least, most = (
        f"{n:,.{0 if n >= 100 else 1 if n >= 10 else 2}f}" for n in spread.values()
    )
    return f"{middle} ({least}-{most})"
