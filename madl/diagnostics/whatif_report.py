"""Explain an out-of-memory error: holders, what other settings would need, advice."""

from collections.abc import Callable
from typing import NamedTuple

from madl.diagnostics.figures import Holder, largest_holders
from madl.diagnostics.histories import past_of, refuse_device
from madl.diagnostics.history import FreeSpace, History
from madl.diagnostics.torch.models import UNLIMITED, AllocatorSettings
from madl.diagnostics.torch.past import TorchOutOfMemory, TorchPast
from madl.diagnostics.torch.snapshot import is_pickle, read_torch_snapshot
from madl.diagnostics.traces.lines import TraceSource, path_of
from madl.diagnostics.traces.reader import open_trace
from madl.diagnostics.whatif import MADL, Outcome, outcomes, peak_reserved
from madl.sizes import format_nbytes

CAVEAT = (
    "The models are written from PyTorch's documentation. How far they are off on a "
    "GPU is not known: none of them has been compared with one yet."
)
DOUBT = (
    "The program ran out of memory where the model of its settings would not have: "
    "what the others say is as doubtful."
)
PEAK_LIMIT_NBYTES = 1 << 50
"""No device has as much, and no model is asked what it would do with it."""
WORTH_A_CHANGE = 0.98
"""A setting is advised when it needs at most that part of what is in use."""


class Failure(NamedTuple):
    """An out-of-memory error of the program, and how things were.

    Attributes:
        requested_nbytes: Bytes asked for.
        place: The line that asked, as ``file:line (function)``; ``None`` where it is
            not known.
        live_nbytes: Bytes that were live.
        reserved_nbytes: Bytes that PyTorch had taken from the device.
        free: Reserved and free.
        device_free_nbytes: Bytes that the device had left; ``None`` where it is not
            known.
        holders: Who held most, the most first.
    """

    requested_nbytes: int
    place: str | None
    live_nbytes: int
    reserved_nbytes: int
    free: FreeSpace
    device_free_nbytes: int | None
    holders: tuple[Holder, ...]


class WhatIf(NamedTuple):
    """Everything that is said of one file.

    Attributes:
        name: Of the file.
        device: ``None`` for a trace, which is of no GPU.
        events: Allocations and frees.
        peak_live_nbytes: The high-water mark of live bytes.
        recorded_peak_nbytes: What PyTorch really reserved; ``None`` for a trace.
        capacity_nbytes: Bytes that the device had; ``None`` where it is not known.
        failure: How it ran out of memory; ``None`` if it did not.
        holders: At the peak.
        outcomes: What each allocator would have done.
        advice: What to do, in words.
        export: What to set ``PYTORCH_ALLOC_CONF`` to, if that helps.
        model_error: How far the model of the settings in use is off what was recorded,
            as a part.
        notes: What a reader has to know of the figures.
    """

    name: str
    device: str | None
    events: int
    peak_live_nbytes: int
    recorded_peak_nbytes: int | None
    capacity_nbytes: int | None
    failure: Failure | None
    holders: tuple[Holder, ...]
    outcomes: tuple[Outcome, ...]
    advice: str
    export: str | None
    model_error: float | None
    notes: tuple[str, ...]


def what_if(
    source: TraceSource,
    *,
    device: int | None = None,
    capacity_nbytes: int | None = None,
    on_progress: Callable[[int, int], object] = lambda events, of: None,
) -> WhatIf:
    """Explain a file, and say what would have helped.

    Args:
        source: What ``torch.cuda.memory._dump_snapshot`` writes, or a trace.
        device: Which GPU of a snapshot; ``None`` for one that ran out of memory, or
            else the one with the most events.
        capacity_nbytes: What the device has for the program. Without it, what
            PyTorch had reserved at the failure, and what the device had left then.
        on_progress: Called with the events done since the last call, and of all.

    Raises:
        FileFormatError: It cannot be opened, is of another kind, or is broken.
    """
    past, in_use = None, None
    if is_pickle(source):
        snapshot = read_torch_snapshot(source)
        past, in_use = past_of(snapshot, device), snapshot.settings
        trace = past.trace
        if capacity_nbytes is None:
            capacity_nbytes = past.history.limit_nbytes
    else:
        trace = open_trace(source)
        refuse_device(trace, path_of(source), device)
    peak, results = trace.peak_live_nbytes, tuple[Outcome, ...]()
    if peak < PEAK_LIMIT_NBYTES and (past is None or past.has_events):
        results = outcomes(trace, in_use, capacity_nbytes, on_progress)
    used = AllocatorSettings() if in_use is None else in_use
    advice, export = _advise(results, peak, capacity_nbytes, used)
    found = WhatIf(
        name=trace.name,
        device=None,
        events=len(trace),
        peak_live_nbytes=peak,
        recorded_peak_nbytes=None,
        capacity_nbytes=capacity_nbytes,
        failure=None,
        holders=(),
        outcomes=results,
        advice=advice,
        export=export,
        model_error=None,
        notes=(*trace.notes, CAVEAT),
    )
    return found if past is None else _with_past(found, past, used)


def _with_past(found: WhatIf, past: TorchPast, in_use: AllocatorSettings) -> WhatIf:
    """Add what a snapshot tells, beside its trace."""
    history = past.history
    failure = past.failures[-1] if past.failures else None
    model_fits = bool(found.outcomes) and found.outcomes[0].fits is True
    doubts = [DOUBT] if failure is not None and model_fits else []
    return found._replace(
        device=history.device,
        recorded_peak_nbytes=history.peak_committed_nbytes,
        failure=None if failure is None else _failure(history, failure),
        holders=largest_holders(history, history.peak_moment),
        model_error=_model_error(past, in_use) if found.outcomes else None,
        notes=(*history.notes, *doubts, CAVEAT),
    )


def _model_error(past: TorchPast, in_use: AllocatorSettings) -> float | None:
    """Return by how much the model is off, on what PyTorch could place."""
    refused = {failure.allocation for failure in past.failures}
    limit = past.history.limit_nbytes
    capacity = UNLIMITED if limit is None else limit
    recorded = past.history.peak_committed_nbytes
    peak = peak_reserved(past.trace, in_use, capacity, left_out=refused)
    return None if peak is None or not recorded else peak / recorded - 1


def _failure(history: History, failure: TorchOutOfMemory) -> Failure:
    moment = failure.moment
    return Failure(
        requested_nbytes=failure.requested_nbytes,
        place=failure.place,
        live_nbytes=int(history.live_nbytes[moment]),
        reserved_nbytes=int(history.committed_nbytes[moment]),
        free=history.free_at(moment),
        device_free_nbytes=failure.device_free_nbytes,
        holders=largest_holders(history, moment),
    )


def _advise(
    results: tuple[Outcome, ...],
    peak_live: int,
    capacity: int | None,
    in_use: AllocatorSettings,
) -> tuple[str, str | None]:
    """Return a piece of advice, and what to set, if anything helps."""
    if peak_live >= PEAK_LIMIT_NBYTES:
        return (
            f"No setting helps: {format_nbytes(peak_live)} are needed at once, and no "
            "device has as much. Try: look for a shape that is wrong",
            None,
        )
    if not results:
        return (
            "There is no history to replay. Try: call "
            "torch.cuda.memory._record_memory_history() before the work, and dump "
            "the snapshot after it",
            None,
        )
    if capacity is not None and peak_live > capacity:
        return (
            f"No setting helps: {format_nbytes(peak_live)} are needed at once, and the "
            f"device has {format_nbytes(capacity)}. Try: a smaller batch, activation "
            "checkpointing, or offloading",
            None,
        )
    now = next(one for one in results if one.settings == in_use)
    best = min((one for one in results if one.settings is not None), key=_rank)
    if capacity is not None and not best.fits:
        return _nothing_fits(results), None
    is_better = best.peak_reserved_nbytes < WORTH_A_CHANGE * now.peak_reserved_nbytes
    if best is now or not (is_better or now.fits is False):
        return "No other setting needs notably less than that in use", None
    assert best.settings is not None, "as chosen"
    return (
        f"With {best.name}, {format_nbytes(best.peak_reserved_nbytes)} would be "
        f"reserved instead of {format_nbytes(now.peak_reserved_nbytes)}",
        best.settings.as_text(),
    )


def _rank(one: Outcome) -> tuple[bool, bool, int]:
    """Order outcomes by how well they would have helped, the best first.

    Whether it fits comes before what is reserved. Garbage collection comes last of
    those that fit: it is bound to reserve less, and pays for that in time.
    """
    collects = one.settings is not None and one.settings.garbage_collection_threshold
    return one.fits is False, bool(collects), one.peak_reserved_nbytes


def _nothing_fits(results: tuple[Outcome, ...]) -> str:
    madl = next(one for one in results if one.name == MADL)
    if madl.fits:
        return (
            "No setting of PyTorch would have fitted. Placed as by madl's pool it "
            f"needs {format_nbytes(madl.peak_reserved_nbytes)}, which fits"
        )
    return (
        "Nothing would have fitted, though what is live at once would. Try: free "
        "large tensors before the peak, or a slightly smaller batch"
    )
