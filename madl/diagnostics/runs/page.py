"""The JSON in the page of ``madl view``: columns packed, names and blocks bounded."""

import base64
import gzip
from typing import TYPE_CHECKING, Any

import numpy as np

from madl.diagnostics.figures import UNNAMED, Curves, Summary, curves, group, summarize
from madl.diagnostics.history import OUT_OF_MEMORY, History
from madl.diagnostics.runs.map import AddressMap, address_map
from madl.sizes import format_nbytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCKS_ON_PAGE = 300_000
NAMES_ON_PAGE = 2_000
NAME_LENGTH = 200
OTHER_NAMES = "(one of the smaller ones)"


def page_data(history: History) -> dict[str, Any]:
    """Return everything a page shows of a history, ready for JSON."""
    summary, grouping, arenas = summarize(history), group(history), address_map(history)
    drawn = curves(history, grouping)
    rows, notes = _rows(history, arenas)
    holder, holders = _names(history, history.blocks.holder, history.holders)
    place, places = _names(history, history.blocks.place, history.places)
    used = np.unique(grouping.of_block).tolist()
    number_of = np.zeros(len(grouping.names), np.uint8)
    number_of[used] = np.arange(len(used))
    table, committed = history.blocks, history.committed
    return {
        "name": history.name,
        "device": history.device,
        "placed_by": history.placed_by,
        "facts": _facts(summary),
        "notes": [*history.notes, *_sampling(drawn, history), *notes],
        "grouped_by": grouping.kind,
        "groups": [_cut(grouping.names[n]) for n in used],
        "curves": _curves(drawn, used),
        "bands": [band._asdict() for band in summary.bands if band.blocks],
        "markers": [(m.moment, _cut(m.label)) for m in history.markers],
        "failure_label": OUT_OF_MEMORY,
        "limit": history.limit_nbytes,
        "last_moment": history.last_moment,
        "peak_moment": summary.peak_moment,
        "span": arenas.span,
        "arenas": [
            {"at": offset, "address": str(start) if history.has_addresses else None}
            for start, _, offset in zip(*map(np.ndarray.tolist, arenas), strict=True)
        ],
        "map_note": _map_note(history, arenas),
        "holders": holders,
        "places": places,
        "blocks": _packed(
            address=arenas.on_map(table.address[rows]).astype("<f8"),
            nbytes=table.nbytes[rows].astype("<f8"),
            start=table.start[rows].astype("<i4"),
            stop=table.stop[rows].astype("<i4"),
            holder=holder[rows].astype("<i4"),
            place=place[rows].astype("<i4"),
            group=number_of[grouping.of_block[rows]],
        ),
        "ranges": _packed(
            address=arenas.on_map(committed.address).astype("<f8"),
            nbytes=committed.nbytes.astype("<f8"),
            start=committed.start.astype("<i4"),
            stop=committed.stop.astype("<i4"),
        ),
    }


def _facts(summary: Summary) -> list[tuple[str, str]]:
    limit = summary.limit_nbytes
    free = summary.at_peak
    return [
        (format_nbytes(summary.peak_live_nbytes), "peak live"),
        (format_nbytes(summary.peak_committed_nbytes), "peak committed"),
        (f"{summary.committed_over_live:.3f}", "committed / live"),
        (f"{free.fragmentation_ratio:.0%}", "fragmentation at peak"),
        ("none" if limit is None else format_nbytes(limit), "limit"),
        (f"{summary.events:,}", "events"),
        (format_nbytes(summary.live_at_end_nbytes), "live at the end"),
    ]


def _curves(drawn: Curves, used: list[int]) -> dict[str, Any]:
    return {
        "moments": drawn.moments.tolist(),
        "live": [drawn.live[number].tolist() for number in used],
        "committed": drawn.committed.tolist(),
        "fragmentation_moments": drawn.fragmentation_moments.tolist(),
        "fragmentation": [round(ratio, 4) for ratio in drawn.fragmentation],
    }


def _sampling(drawn: Curves, history: History) -> list[str]:
    if not drawn.is_sampled:
        return []
    return [
        f"The curves show {len(drawn.moments):,} of {history.last_moment + 1:,} "
        "moments: of each part of the run the highest and the lowest. The map is exact "
        "at every moment."
    ]


def _rows(
    history: History, arenas: AddressMap
) -> tuple["NDArray[np.int64]", list[str]]:
    """Return which blocks are on the map, and what to say of the others."""
    blocks, notes = history.blocks, list[str]()
    is_there, has_bytes = arenas.contain(blocks.address), blocks.nbytes > 0
    rows = np.flatnonzero(has_bytes & is_there)
    if outside := int(np.count_nonzero(has_bytes & ~is_there)):
        notes.append(f"{outside:,} blocks lie outside all segments; no map shows them.")
    if len(rows) > BLOCKS_ON_PAGE:
        order = np.argsort(blocks.nbytes[rows], kind="stable")[-BLOCKS_ON_PAGE:]
        smallest = format_nbytes(int(blocks.nbytes[rows[order[0]]]))
        notes.append(
            f"The map and its list of holders know the {BLOCKS_ON_PAGE:,} largest of "
            f"{len(rows):,} blocks, which are {smallest} and more."
        )
        rows = np.sort(rows[order])
    return rows, notes


def _names(
    history: History, column: "NDArray[np.int64]", names: tuple[str | None, ...]
) -> tuple["NDArray[np.int64]", list[str]]:
    """Return names for a page, those of the most bytes, and the column for them."""
    weights = history.blocks.nbytes
    given = np.bincount(column.astype(np.intp), weights, minlength=len(names))
    order = np.argsort(-given, kind="stable")[:NAMES_ON_PAGE]
    number_of = np.full(len(names), len(order), np.int64)
    number_of[order] = np.arange(len(order))
    shown = [UNNAMED if names[n] is None else _cut(names[n] or "") for n in order]
    return number_of[column], [*shown, OTHER_NAMES]


def _map_note(history: History, arenas: AddressMap) -> str:
    count = len(arenas.start)
    what = f"{count:,} ranges of addresses, end to end" if count > 1 else "one range"
    return f"{what} \u00b7 {format_nbytes(arenas.span)}"


def _cut(name: str) -> str:
    if len(name) <= NAME_LENGTH:
        return name
    half = NAME_LENGTH // 2
    return f"{name[:half]}\u2026{name[-half:]}"


def _packed(**columns: "NDArray[Any]") -> dict[str, Any]:
    """Return columns as text, those of the widest numbers first: no gaps for them."""
    content = b"".join(column.tobytes() for column in columns.values())
    return {
        "rows": len(next(iter(columns.values()))),
        "columns": [
            (name, f"{column.dtype.kind}{column.dtype.itemsize}")
            for name, column in columns.items()
        ],
        "packed": base64.b64encode(gzip.compress(content, 6, mtime=0)).decode(),
    }
