"""Simulate a trace under PyTorch's allocator settings, and under madl's pool.

The trace is what the program asked for; each model says what it would have taken from
the device for that, and, where it is known how much the device had, whether it fits.
"""

from collections.abc import Callable, Container
from dataclasses import replace
from typing import NamedTuple

from madl.backends.sim import DEFAULT_TOTAL_NBYTES, SimBackend
from madl.diagnostics.replay import replay
from madl.diagnostics.torch.models import (
    UNLIMITED,
    AllocatorSettings,
    ReserveRefusedError,
    model_of,
)
from madl.diagnostics.traces.trace import Trace
from madl.errors import OutOfMemoryError
from madl.pool import Pool

MIB = 1 << 20
CANDIDATES = (
    AllocatorSettings(),
    AllocatorSettings(expandable_segments=True),
    AllocatorSettings(max_split_nbytes=64 * MIB),
    AllocatorSettings(max_split_nbytes=128 * MIB),
    AllocatorSettings(max_split_nbytes=512 * MIB),
    AllocatorSettings(roundup_power2_divisions=((UNLIMITED, 4),)),
    AllocatorSettings(roundup_power2_divisions=((UNLIMITED, 8),)),
)
GARBAGE_COLLECTION = AllocatorSettings(garbage_collection_threshold=0.8)
"""Only where the capacity is known: it is a part of that."""
MADL = "madl's pool"
DEFAULTS = "PyTorch's defaults"


class Outcome(NamedTuple):
    """What one allocator would have done.

    Attributes:
        name: What it is called in the table.
        settings: ``None`` for madl's pool.
        peak_reserved_nbytes: What it takes when nothing limits it.
        fits: Whether the capacity is enough; ``None`` where it is not known.
        is_in_use: Whether these are the settings of the process that was recorded.
    """

    name: str
    settings: AllocatorSettings | None
    peak_reserved_nbytes: int
    fits: bool | None
    is_in_use: bool = False


def outcomes(
    trace: Trace,
    in_use: AllocatorSettings | None = None,
    capacity_nbytes: int | None = None,
    on_progress: Callable[[int, int], object] = lambda events, of: None,
) -> tuple[Outcome, ...]:
    """Return what each allocator would have done, that in use first, madl's last.

    Args:
        trace: What was asked for; the models know its streams, madl's pool does not.
        in_use: The settings of the process; ``None`` where there was none.
        capacity_nbytes: What the device had for it; ``None`` when not known.
        on_progress: Called with the events done since the last call, and of all.
    """
    candidates = list(CANDIDATES)
    if capacity_nbytes is not None:
        candidates.append(GARBAGE_COLLECTION)
    if in_use is not None:
        candidates = [in_use, *(one for one in candidates if one != in_use)]
    steps = (len(candidates) + 1) * len(trace)
    found = []
    for settings in candidates:
        found.append(_of_torch(trace, settings, in_use, capacity_nbytes))
        on_progress(len(trace), steps)
    found.append(_of_madl(trace, capacity_nbytes))
    on_progress(len(trace), steps)
    return tuple(found)


def peak_reserved(
    trace: Trace,
    settings: AllocatorSettings,
    capacity: int = UNLIMITED,
    *,
    left_out: Container[int] = (),
) -> int | None:
    """Return what a model reserves; ``None`` where the capacity is not enough.

    Allocations whose ids are in ``left_out`` are not made.
    """
    model = model_of(settings, capacity_nbytes=capacity)
    try:
        for operation in trace.operations:
            allocation = operation if operation >= 0 else ~operation
            nbytes = trace.nbytes_of[allocation]
            # PyTorch serves a request for nothing without its allocator.
            if not nbytes or allocation in left_out:
                continue
            if operation < 0:
                model.free(allocation)
            else:
                stream = 0 if trace.stream_of is None else trace.stream_of[allocation]
                model.allocate(allocation, nbytes, stream)
    except ReserveRefusedError:
        return None
    return model.peak_reserved_nbytes


def _of_torch(
    trace: Trace,
    settings: AllocatorSettings,
    in_use: AllocatorSettings | None,
    capacity: int | None,
) -> Outcome:
    # Garbage is collected above a part of the capacity, so without it there is none.
    limit = UNLIMITED
    if settings.garbage_collection_threshold and capacity is not None:
        limit = capacity
    peak = unlimited = peak_reserved(trace, settings, limit)
    if unlimited is None:
        unlimited = peak_reserved(trace, settings)
    assert unlimited is not None, "nothing refused it"
    fits = None
    if capacity is not None:
        fits = unlimited <= capacity and peak is not None
        fits = fits or peak_reserved(trace, settings, capacity) is not None
    name = settings.as_text() or DEFAULTS
    return Outcome(name, settings, unlimited, fits, is_in_use=settings == in_use)


def _of_madl(trace: Trace, capacity: int | None) -> Outcome:
    # Where blocks lie does not depend on their tags.
    trace = replace(trace, tag_of=None)
    # The pool may keep twice what is live: the device must not be what limits it.
    total = max(DEFAULT_TOTAL_NBYTES, 2 * trace.peak_live_nbytes)
    with Pool(SimBackend(total_nbytes=total), pooling=True) as pool:
        peak = replay(trace, pool).peak_committed_nbytes
    fits = None if capacity is None else peak <= capacity
    if capacity is not None and not fits:
        fits = _madl_fits(trace, capacity)
    return Outcome(MADL, None, peak, fits)


def _madl_fits(trace: Trace, capacity: int) -> bool:
    if trace.peak_live_nbytes > capacity or not capacity:
        return False
    sim = SimBackend(total_nbytes=max(DEFAULT_TOTAL_NBYTES, capacity))
    try:
        with Pool(sim, limit=capacity, pooling=True) as pool:
            replay(trace, pool)
    except OutOfMemoryError:
        return False
    return True
