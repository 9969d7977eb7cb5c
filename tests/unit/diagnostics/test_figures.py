"""Figures of a history: sums, groups, and curves that keep the peaks."""

import numpy as np
import pytest
from numpy.typing import NDArray

from madl.diagnostics import example_path, figures, open_trace, read_trace
from madl.diagnostics.figures import Curves, curves, group, size_bands, summarize
from madl.diagnostics.history import History
from madl.diagnostics.runs.from_trace import history_of_trace

MIB = 1 << 20


def history(*records: str) -> History:
    lines = "\n".join(["# madl-trace v1", *records, ""])
    return history_of_trace(read_trace(lines.encode()))


def total(drawn: Curves) -> NDArray[np.int64]:
    return np.sum(drawn.live, axis=0)  # type: ignore[no-any-return]  # of integers


@pytest.fixture(scope="module")
def example() -> History:
    return history_of_trace(open_trace(example_path("vit-train")))


def test_groups_hold_all_that_is_live(example: History) -> None:
    drawn = curves(example, group(example))

    assert total(drawn).tolist() == example.live_nbytes[drawn.moments].tolist()


def test_curves_of_a_long_run_keep_both_peaks(example: History) -> None:
    drawn = curves(example, group(example))

    assert drawn.is_sampled
    assert len(drawn.moments) <= 2 * figures.BUCKETS + 4
    assert total(drawn).max() == example.peak_live_nbytes
    assert drawn.committed.max() == example.peak_committed_nbytes
    assert (drawn.moments[0], drawn.moments[-1]) == (0, example.last_moment)


def test_curves_keep_the_highest_and_the_lowest_of_every_part(
    example: History,
) -> None:
    drawn = curves(example, group(example))
    live = example.live_nbytes
    width = len(live) // figures.BUCKETS

    for first in range(0, len(live) - width, 5 * width):
        near = slice(max(first - width, 0), first + 2 * width)
        shown = live[
            drawn.moments[(drawn.moments >= near.start) & (drawn.moments < near.stop)]
        ]
        assert shown.max() >= live[first : first + width].max()
        assert shown.min() <= live[first : first + width].min()


def test_a_short_run_is_drawn_whole() -> None:
    short = history("a,0,100", "f,0")

    drawn = curves(short, group(short))

    assert drawn.moments.tolist() == [0, 1, 2]
    assert not drawn.is_sampled


def test_untagged_blocks_are_grouped_by_size() -> None:
    grouping = group(history("a,0,100", f"a,1,{2 << 30}"))

    assert grouping.kind == "size"
    assert [grouping.names[n] for n in grouping.of_block] == [
        "up to 512 B",
        "above 1 GiB",
    ]


def test_the_largest_holders_at_the_peak_are_groups_and_one_is_the_rest() -> None:
    records = [f"a,{n},{(n + 1) * MIB},0,tag{n}" for n in range(12)]

    grouping = group(history(*records))

    assert grouping.kind == "holder"
    largest = tuple(f"tag{n}" for n in range(11, 11 - figures.GROUP_COUNT, -1))
    assert grouping.names == (*largest, figures.OTHERS)
    assert grouping.of_block[[11, 10, 0]].tolist() == [0, 1, figures.GROUP_COUNT]


def test_untagged_blocks_beside_tagged_ones_are_a_group() -> None:
    assert figures.UNNAMED in group(history("a,0,100,0,x", "a,1,99")).names


def test_bands_count_all_blocks_of_the_run(example: History) -> None:
    bands = size_bands(example)

    assert sum(band.blocks for band in bands) == len(example.blocks.nbytes)
    assert sum(band.nbytes for band in bands) == int(example.blocks.nbytes.sum())


def test_the_edge_of_a_band_belongs_to_it() -> None:
    bands = size_bands(history("a,0,512", "a,1,513"))

    assert [(band.name, band.blocks) for band in bands[:2]] == [
        ("up to 512 B", 1),
        ("up to 4 KiB", 1),
    ]


def test_a_summary_says_who_holds_what_at_the_peak() -> None:
    summary = summarize(history("a,0,100,0,x", "a,1,300,0,y", "f,1"))

    assert (summary.peak_moment, summary.peak_live_nbytes) == (2, 400)
    assert summary.holders == (("y", 300, 1), ("x", 100, 1))
    assert summary.live_at_end_nbytes == 100
    assert summary.committed_over_live == summary.peak_committed_nbytes / 400


def test_a_run_of_nothing_has_a_summary() -> None:
    summary = summarize(history())

    assert (summary.peak_live_nbytes, summary.committed_over_live) == (0, 1.0)
