"""Open a trace file of any kind, told by its content; and the traces that ship here.

Each kind has a module that adds its events; ``traces.lines`` bounds what a file costs.
"""

import atexit
import functools
from collections.abc import Callable
from contextlib import ExitStack
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path, PurePath
from typing import IO

from madl.diagnostics.snapshot_json import is_snapshot, load_snapshot
from madl.diagnostics.traces.builder import TraceBuilder
from madl.diagnostics.traces.csv import CSV_FIRST_LINE, CsvReader, is_csv
from madl.diagnostics.traces.journal import MAGIC, SUFFIX, add_journal
from madl.diagnostics.traces.lines import (
    PICKLE_START,
    Blocks,
    RefusedError,
    TraceSource,
    head_of,
    numbered_blocks,
    numbered_lines,
    opened,
    path_of,
    shown,
)
from madl.diagnostics.traces.rmm import RMM_FIRST_LINE, RmmReader
from madl.diagnostics.traces.text import add_text
from madl.diagnostics.traces.trace import FIRST_LINE, Trace
from madl.diagnostics.traces.umpire import UmpireReader, is_umpire
from madl.errors import FileFormatError
from madl.pool.stats import PoolSnapshot

_SUFFIXES = (".gz", ".trace", ".csv", ".txt", ".json", SUFFIX)
_HEAD_NBYTES = 4096
_ALL_KINDS = (
    "one of these, a journal, Umpire's log; with `madl report` a snapshot or "
    "PyTorch's pickle"
)
_Reader = CsvReader | RmmReader | UmpireReader
_FIRST_LINES = (FIRST_LINE, CSV_FIRST_LINE, RMM_FIRST_LINE)


def open_trace(source: TraceSource) -> Trace:
    """Return the trace in a file of any kind: its content tells which it is.

    Args:
        source: A ``madl-trace v1``, the journal of a recording, RMM's CSV log,
            Umpire's replay log, or a CSV with the columns ``id,lower,upper,size`` as
            MiniMalloc and idealloc use; gzipped or plain; a path, or the bytes
            themselves.

    Raises:
        FileFormatError: It cannot be opened, is of another kind, or is broken.
    """
    return _read(source, _add_any)


def read_trace(source: TraceSource) -> Trace:
    """Return the trace in a ``madl-trace v1``, gzipped or plain.

    Raises:
        FileFormatError: It cannot be opened, is of another kind, or is broken.
    """
    return _read(source, _add_only_text)


def open_trace_or_snapshot(source: TraceSource) -> Trace | PoolSnapshot:
    """Return what is in a file: its content tells which it is.

    Raises:
        FileFormatError: It cannot be opened, is neither, or is broken.
    """
    if is_snapshot(head_of(source, _HEAD_NBYTES)):
        return load_snapshot(source)
    return open_trace(source)


def _read(
    source: TraceSource, add: Callable[[str, IO[bytes], TraceBuilder], None]
) -> Trace:
    path = path_of(source)
    builder = TraceBuilder()
    with opened(source) as file:
        _refuse_pictures(path, file.peek()[:_HEAD_NBYTES])
        add(path, file, builder)
    name = PurePath(path).name
    while name.endswith(_SUFFIXES):
        name = name.rpartition(".")[0]
    return builder.finish(name)


def _refuse_pictures(path: str, head: bytes) -> None:
    """Refuse what shows memory without events, and say what reads it."""
    if is_snapshot(head):
        what, readers = "a snapshot, which has no events", "view` or `madl diff"
    elif head.startswith(PICKLE_START):
        what, readers = "a pickle, as PyTorch's snapshots are", "view` or `madl whatif"
    else:
        return
    reason = f"this is {what}. Try: `madl report`, `madl {readers}`"
    raise FileFormatError(path, 0, reason)


def _add_any(path: str, file: IO[bytes], builder: TraceBuilder) -> None:
    head = file.read(len(MAGIC))
    if head == MAGIC:
        add_journal(path, file, builder)
        return
    first, lines, blocks = _start(path, file, head)
    if is_umpire(lines):
        _add_lines(path, chain([(1, lines)], blocks), UmpireReader(builder))
    elif first == FIRST_LINE:
        add_text(path, chain([(2, lines[1:])], blocks), builder)
    elif first == RMM_FIRST_LINE:
        _add_lines(path, chain([(2, lines[1:])], blocks), RmmReader(builder))
    elif is_csv(lines[0]):
        _add_lines(path, chain([(1, lines)], blocks), CsvReader(builder))
    else:
        reason = f"{_wrong_kind(lines[0], _FIRST_LINES)}. Try: {_ALL_KINDS}"
        raise FileFormatError(path, 1, reason)


def _add_lines(path: str, blocks: Blocks, reader: _Reader) -> None:
    for number, line in numbered_lines(blocks):
        try:
            if line:
                reader.add(line)
        except RefusedError as bad:
            raise FileFormatError(path, number, str(bad)) from None
    reader.finish()


def _add_only_text(path: str, file: IO[bytes], builder: TraceBuilder) -> None:
    first, lines, blocks = _start(path, file, b"")
    if first != FIRST_LINE:
        raise FileFormatError(path, 1, _wrong_kind(lines[0], (FIRST_LINE,)))
    add_text(path, chain([(2, lines[1:])], blocks), builder)


def _start(path: str, file: IO[bytes], head: bytes) -> tuple[str, list[bytes], Blocks]:
    """Return the first line, the first of the lines, and the blocks of the others."""
    blocks = numbered_blocks(path, file, head)
    _, lines = next(blocks, (1, [b""]))
    return lines[0].rstrip().decode(errors="replace"), lines, blocks


def _wrong_kind(line: bytes, kinds: tuple[str, ...]) -> str:
    wanted = f"the first line must be {' or '.join(map(repr, kinds))}"
    if not line:
        return f"{wanted}, but it is empty"
    if b"\0" in line or "\ufffd" in line.decode(errors="replace"):
        return f"{wanted}, but this is a binary file"
    return f"{wanted}, got {shown(line)}"


def example_names() -> tuple[str, ...]:
    """Return the names of the example traces, in alphabetical order.

    >>> from madl.diagnostics import example_names
    >>> example_names()
    ('gpt2-train', 'resnet50-train', 'vit-train')
    """
    parts = (path.name.partition(".") for path in _examples().iterdir())
    return tuple(sorted(name for name, _, kinds in parts if kinds == "trace.gz"))


def _examples() -> Traversable:
    # Not as this module is imported: files() waits for a thread that imports the
    # package, and that thread waits for this module.
    return files("madl.diagnostics") / "examples"


@functools.cache
def _as_file(name: str) -> Path:
    """Return a file of an example; out of a zip, one that lasts as the process does."""
    file = ExitStack()
    atexit.register(file.close)
    return file.enter_context(as_file(_examples() / f"{name}.trace.gz"))


def example_path(name: str) -> Path:
    """Return where an example trace lies, one of ``example_names()``.

    Raises:
        ValueError: No example has that name.
    """
    names = example_names()
    if name not in names:
        raise ValueError(f"example must be one of {', '.join(names)}, got {name!r}")
    return _as_file(name)
