"""What a snapshot of a pool shows in pictures and reports."""

import gzip
import json
from pathlib import Path

import pytest

import madl
from madl import FileFormatError, Pool
from madl.diagnostics import load_snapshot, open_trace, save_snapshot
from madl.diagnostics.figures import summarize
from madl.diagnostics.histories import open_history
from madl.diagnostics.runs.map import map_snapshot
from madl.diagnostics.runs.page import page_data

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pool.json"


def test_what_is_live_is_held_by_its_tags(path: Path) -> None:
    with Pool("sim") as pool, madl.keep_stacks():
        held = [pool.allocate(3 * MIB, tag="weights"), pool.allocate(MIB)]
        stats = pool.stats()
        save_snapshot(pool.snapshot(), path)
        del held

    history = open_history(str(path), limit="1 GiB")
    found = summarize(history)
    assert found.name == "pool"
    assert found.peak_live_nbytes == found.live_at_end_nbytes == 4 * MIB
    assert found.peak_committed_nbytes == stats.committed_nbytes
    assert found.at_peak.nbytes == stats.committed_nbytes - 4 * MIB
    assert found.limit_nbytes == 1 << 30
    assert [holder[:2] for holder in found.holders] == [
        ("weights", 3 * MIB),
        ("(no name)", MIB),
    ]
    assert str(history.places[1]).startswith(f"{__file__}:")
    assert page_data(history)["notes"][0].startswith("This is a snapshot")


def test_without_tags_lines_are_the_holders(path: Path) -> None:
    with Pool("sim") as pool, madl.keep_stacks():
        held = pool.allocate(MIB)
        save_snapshot(pool.snapshot(), path)
        del held

    (holder,) = summarize(open_history(str(path))).holders
    assert holder.name.startswith(f"{__file__}:")


def test_the_map_is_that_of_the_pool(path: Path) -> None:
    with Pool("cpu") as pool:
        held = [pool.allocate(n * MIB) for n in (1, 2, 3)]
        del held[1]
        snapshot = pool.snapshot()
        save_snapshot(snapshot, path)
        held.clear()

    history = open_history(str(path))
    (arena,) = map_snapshot(history, history.last_moment).arenas
    assert (
        sum(nbytes for _, nbytes in arena.committed_runs) == snapshot.committed_nbytes
    )
    assert [block.nbytes for block in arena.blocks] == [
        block.nbytes
        for one in sorted(snapshot.arenas, key=lambda one: one.address or 0)
        for block in one.blocks
        if block.state == "live"
    ]
    assert history.has_addresses


def test_an_empty_pool_has_a_history_too(path: Path) -> None:
    with Pool("sim") as pool:
        save_snapshot(pool.snapshot(), path)

    history = open_history(str(path))

    assert summarize(history).blocks == 0
    assert page_data(history)["span"] == 0


def test_arenas_that_no_memory_could_have_are_refused(path: Path) -> None:
    with Pool("cpu") as pool:
        held = pool.allocate(MIB)
        save_snapshot(pool.snapshot(), path)
        del held
    document = json.loads(path.read_text())
    document["arenas"][0]["address"] = 1 << 63
    data = json.dumps(document).encode()

    assert load_snapshot(data).arenas[0].address == 1 << 63
    with pytest.raises(FileFormatError, match="no address of memory"):
        open_history(data)


def test_a_device_cannot_be_chosen(path: Path) -> None:
    with Pool("sim") as pool:
        save_snapshot(pool.snapshot(), path)

    with pytest.raises(FileFormatError, match="this is a snapshot of one pool"):
        open_history(str(path), device=0)


@pytest.mark.parametrize("count", [0, 2000])
def test_what_needs_events_says_what_reads_a_snapshot(path: Path, count: int) -> None:
    with Pool("sim") as pool:
        held = [pool.allocate(n) for n in range(count)]
        save_snapshot(pool.snapshot(), path)
        del held

    for data in (path.read_bytes(), gzip.compress(path.read_bytes())):
        with pytest.raises(FileFormatError, match="a snapshot, which has no events"):
            open_trace(data)


def test_what_needs_a_trace_says_what_reads_a_pickle() -> None:
    with pytest.raises(FileFormatError, match="this is a pickle, as PyTorch"):
        open_trace(b"\x80\x04}.")
