"""Open the history in a file: a trace, a snapshot of a pool or one of PyTorch."""

from collections.abc import Callable
from dataclasses import replace

from madl.diagnostics.history import History
from madl.diagnostics.runs.from_snapshot import history_of_snapshot
from madl.diagnostics.runs.from_trace import history_of_trace
from madl.diagnostics.torch.past import TorchPast, torch_past
from madl.diagnostics.torch.snapshot import (
    TorchSnapshot,
    is_pickle,
    read_torch_snapshot,
)
from madl.diagnostics.traces.lines import TraceSource, path_of
from madl.diagnostics.traces.reader import open_trace_or_snapshot
from madl.diagnostics.traces.trace import Trace
from madl.errors import FileFormatError
from madl.pool.stats import PoolSnapshot
from madl.sizes import parse_nbytes


def open_file(source: TraceSource) -> Trace | PoolSnapshot | TorchSnapshot:
    """Return what is in a file: its content tells which it is.

    Raises:
        FileFormatError: It cannot be opened, is of another kind, or is broken.
    """
    if is_pickle(source):
        return read_torch_snapshot(source)
    return open_trace_or_snapshot(source)


def open_history(
    source: TraceSource,
    *,
    limit: int | str | None = None,
    device: int | None = None,
    on_progress: Callable[[int, int], object] = lambda events, of: None,
) -> History:
    """Return where the blocks of a run lay, and when.

    A trace says what was asked for and when, so it is replayed through a pool on
    ``sim``. A PyTorch snapshot says where PyTorch placed it, and a snapshot of madl's
    own what one pool holds at one moment.

    Args:
        source: A trace of any kind, what ``torch.cuda.memory._dump_snapshot`` or
            ``save_snapshot`` writes; a path, or the bytes themselves.
        limit: What the pool may commit, for a trace; what the device had, for a
            snapshot, which may not tell.
        device: Which GPU of a snapshot; ``None`` for one that ran out of memory, or
            else the one with the most events.
        on_progress: Called with the events done since the last call, and of all.

    Raises:
        FileFormatError: It cannot be opened, is of another kind, or is broken.
        OutOfMemoryError: The trace needs more than the limit.
    """
    found, path = open_file(source), path_of(source)
    if isinstance(found, TorchSnapshot):
        return _with_limit(past_of(found, device).history, limit)
    refuse_device(found, path, device)
    if isinstance(found, PoolSnapshot):
        return _with_limit(history_of_snapshot(found, path), limit)
    return history_of_trace(
        found, limit=limit, on_progress=lambda events: on_progress(events, len(found))
    )


def refuse_device(found: Trace | PoolSnapshot, path: str, device: int | None) -> None:
    """Refuse to choose a GPU in a file that is of none.

    Raises:
        FileFormatError: A device is named.
    """
    if device is not None:
        is_trace = isinstance(found, Trace)
        what = "trace, which is of no GPU" if is_trace else "snapshot of one pool"
        reason = f"this is a {what}. Try: leave the device out"
        raise FileFormatError(path, 0, reason)


def _with_limit(history: History, limit: int | str | None) -> History:
    if limit is None:
        return history
    return replace(history, limit_nbytes=parse_nbytes(limit, name="limit"))


def past_of(snapshot: TorchSnapshot, device: int | None = None) -> TorchPast:
    """Return the past of a device, as ``device_of`` chooses it."""
    return torch_past(snapshot, device_of(snapshot, device))


def device_of(snapshot: TorchSnapshot, device: int | None) -> int:
    """Return the device that is meant.

    Without one, of those that ran out of memory, if any did, the one with the most
    events.

    Raises:
        FileFormatError: The snapshot knows nothing of it, or of any device.
    """
    known = snapshot.devices
    if not known or device not in {None, *known}:
        which = "any device" if device is None else f"device {device}"
        others = f"; it has {', '.join(map(str, known))}" if known else ""
        reason = f"the snapshot says nothing of {which}{others}"
        raise FileFormatError(snapshot.path, 0, reason)
    if device is not None:
        return device
    return max(
        known, key=lambda one: (snapshot.ran_out(one), len(snapshot.events_of(one)))
    )
