"""Snapshots as JSON files, in the format of ``schemas/snapshot-v1.json``.

The file is untrusted: types, ranges and the tiling of blocks are checked, and its size
is bounded. ``load_snapshot(save_snapshot(...))`` is the identity.
"""

import json
import os
from collections.abc import Callable
from importlib.resources import files
from typing import Any, TypeGuard, TypeVar, cast

from madl.diagnostics.traces.lines import RefusedError, TraceSource, path_of, read_whole
from madl.diagnostics.traces.text import stack_from_lists
from madl.diagnostics.traces.writer import write_whole
from madl.errors import FileFormatError
from madl.pool.stats import ArenaSnapshot, BlockSnapshot, PoolSnapshot

FORMAT = "madl-snapshot"
VERSION = 1
SNAPSHOT_LIMIT_NBYTES = 128 << 20
"""Of the JSON text, unpacked: about a million blocks."""
_NBYTES_LIMIT = 1 << 63
_ADDRESS_LIMIT = 1 << 64
_STATES = ("live", "binned", "free")

T = TypeVar("T")


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what ``save_snapshot`` writes."""
    text = files("madl.diagnostics").joinpath("schemas/snapshot-v1.json").read_text()
    return cast("dict[str, Any]", json.loads(text))


def save_snapshot(snapshot: PoolSnapshot, path: str | os.PathLike[str]) -> None:
    """Write ``pool.snapshot()`` as JSON; an existing file is replaced.

    Raises:
        OSError: The file cannot be written; what was there is as before.
    """
    document = {"format": FORMAT, "version": VERSION, **snapshot.as_dict()}
    write_whole(path, json.dumps(document, separators=(",", ":")).encode())


def is_snapshot(head: bytes) -> bool:
    """Return whether a file that starts so is a snapshot, sound or not."""
    return head.lstrip()[:1] == b"{" and FORMAT.encode() in head


def load_snapshot(source: TraceSource) -> PoolSnapshot:
    """Return the snapshot in a JSON file, gzipped or plain, or in its bytes.

    Raises:
        FileFormatError: It cannot be opened, is of another kind, or is broken.
    """
    path = path_of(source)
    text = read_whole(source, "a snapshot", SNAPSHOT_LIMIT_NBYTES)
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileFormatError(path, error.lineno, f"no JSON: {error.msg}") from None
    except (ValueError, RecursionError):  # no UTF-8, numbers too long, nested too deep
        raise FileFormatError(path, 0, "no JSON that could be a snapshot") from None
    try:
        return _snapshot(document)
    except RefusedError as bad:
        raise FileFormatError(path, 0, str(bad)) from None


def _snapshot(document: object) -> PoolSnapshot:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RefusedError(f'"format" must be {FORMAT!r}: this is something else')
    if document.get("version") != VERSION or document["version"] is True:
        raise RefusedError(
            f'"version" must be {VERSION}, got {_shown(document.get("version"))}. '
            "Try: the release of madl that wrote it, or a later one"
        )
    return PoolSnapshot(
        device=_text(document, "device"),
        live_nbytes=_nbytes(document, "live_nbytes"),
        committed_nbytes=_nbytes(document, "committed_nbytes"),
        arenas=_all(document, "arenas", _arena),
    )


def _arena(fields: object) -> ArenaSnapshot:
    arena = _object(fields, "an arena")
    address = arena.get("address", "nothing")
    if address is not None and not _is_integer(address, _ADDRESS_LIMIT):
        raise RefusedError(
            f'"address" must be null or below {_ADDRESS_LIMIT}, got {_shown(address)}'
        )
    found = ArenaSnapshot(
        nbytes=_nbytes(arena, "nbytes"),
        address=address,
        page_nbytes=_nbytes(arena, "page_nbytes"),
        committed_runs=_all(arena, "committed_runs", _run),
        blocks=_all(arena, "blocks", _block),
    )
    _check_tiling(found)
    return found


def _run(run: object) -> tuple[int, int]:
    if not (
        isinstance(run, list)
        and len(run) == 2
        and all(_is_integer(number, _NBYTES_LIMIT) for number in run)
    ):
        raise RefusedError(
            f"a committed run must be [offset, bytes], got {_shown(run)}"
        )
    return run[0], run[1]


def _block(fields: object) -> BlockSnapshot:
    block = _object(fields, "a block")
    state, tag = block.get("state"), block.get("tag")
    if state not in _STATES:
        raise RefusedError(
            f'"state" must be one of {", ".join(_STATES)}, got {_shown(state)}'
        )
    if tag is not None:
        _text(block, "tag")
    return BlockSnapshot(
        offset=_nbytes(block, "offset"),
        capacity_nbytes=_nbytes(block, "capacity_nbytes"),
        state=state,
        nbytes=_nbytes(block, "nbytes"),
        tag=tag,
        stack=stack_from_lists(block.get("stack", [])),
    )


def _check_tiling(arena: ArenaSnapshot) -> None:
    position = 0
    for block in arena.blocks:
        if block.offset != position or block.capacity_nbytes == 0:
            raise RefusedError(
                "blocks must fill an arena without gap or overlap, lowest first, but "
                f"one of {block.capacity_nbytes} bytes starts at {block.offset} "
                f"where {position} was expected"
            )
        if block.nbytes > block.capacity_nbytes:
            raise RefusedError(
                f"a block of {block.capacity_nbytes} bytes cannot hold {block.nbytes}"
            )
        position += block.capacity_nbytes
    if position != arena.nbytes:
        raise RefusedError(
            f"the blocks of an arena of {arena.nbytes} bytes end at {position}"
        )
    end = 0
    for offset, nbytes in arena.committed_runs:
        if offset < end or nbytes == 0 or offset + nbytes > arena.nbytes:
            raise RefusedError(
                "committed runs must lie in the arena, apart and lowest first, got "
                f"[{offset}, {nbytes}]"
            )
        end = offset + nbytes


def _all(
    fields: dict[str, Any], key: str, read: Callable[[object], T]
) -> tuple[T, ...]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise RefusedError(f'"{key}" must be a list, got {_shown(value)}')
    return tuple(map(read, value))


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RefusedError(f"{what} must be an object, got {_shown(value)}")
    return value


def _text(fields: dict[str, Any], key: str) -> str:
    value = fields.get(key)
    if not (isinstance(value, str) and value.isprintable()):
        raise RefusedError(f'"{key}" must be a printable text, got {_shown(value)}')
    return value


def _nbytes(fields: dict[str, Any], key: str) -> int:
    value = fields.get(key)
    if not _is_integer(value, _NBYTES_LIMIT):
        raise RefusedError(
            f'"{key}" must be a whole number from 0 and below {_NBYTES_LIMIT}, '
            f"got {_shown(value)}"
        )
    return value


def _is_integer(value: object, limit: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < limit


def _shown(value: object) -> str:
    """Return the start of a value, fit for an error."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
