"""Snapshots survive a file, and a file that is no snapshot is refused."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from madl import Pool, PoolSnapshot
from madl.diagnostics import load_snapshot, save_snapshot, snapshot_json
from madl.errors import FileFormatError
from madl.stacks import Line


def taken() -> PoolSnapshot:
    with Pool("sim", limit="64 MiB") as pool:
        kept = pool.allocate(1000, tag="weights"), pool.allocate("3 MiB")
        pool.allocate(5000).free()
        snapshot = pool.snapshot()
        del kept
    return snapshot


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    save_snapshot(taken(), tmp_path / "s.json")
    loaded: dict[str, Any] = json.loads((tmp_path / "s.json").read_text())
    return loaded


@pytest.mark.parametrize("device", ["sim", "cpu"])
def test_a_snapshot_survives_a_file(device: str, tmp_path: Path) -> None:
    with Pool(device) as pool:
        held = [pool.allocate(n * 1000, tag=t) for n, t in enumerate("abc", 1)]
        held.pop().free()
        snapshot = pool.snapshot()

        save_snapshot(snapshot, tmp_path / "s.json")

        assert load_snapshot(tmp_path / "s.json") == snapshot
        held.clear()


def test_stacks_survive_a_file(document: dict[str, Any], tmp_path: Path) -> None:
    _arena(document)["blocks"][0]["stack"] = [["a.py", 3, "f"], ["b.py", 1, "g"]]
    loaded = load_snapshot(json.dumps(document).encode())

    save_snapshot(loaded, tmp_path / "again.json")

    assert load_snapshot(tmp_path / "again.json") == loaded
    assert loaded.arenas[0].blocks[0].stack == (
        Line("a.py", 3, "f"),
        Line("b.py", 1, "g"),
    )


def test_a_pool_that_took_nothing_has_no_arena(tmp_path: Path) -> None:
    save_snapshot(Pool("sim").snapshot(), tmp_path / "s.json")

    assert load_snapshot(tmp_path / "s.json").arenas == ()


def test_gzip_and_bytes_are_read(document: dict[str, Any]) -> None:
    text = json.dumps(document).encode()

    assert load_snapshot(text) == load_snapshot(gzip.compress(text))


def test_what_is_written_obeys_the_schema_that_ships(document: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(snapshot_json.schema())

    jsonschema.Draft202012Validator.check_schema(snapshot_json.schema())

    assert list(validator.iter_errors(document)) == []
    document["arenas"][0]["blocks"][0]["state"] = "lost"
    assert len(list(validator.iter_errors(document))) == 1


def test_properties_that_are_not_known_are_passed_over(
    document: dict[str, Any],
) -> None:
    document["later"] = document["arenas"][0]["later"] = [1]

    assert load_snapshot(json.dumps(document).encode()).device == "sim"


def _arena(document: dict[str, Any]) -> dict[str, Any]:
    arena: dict[str, Any] = document["arenas"][0]
    return arena


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda d: d.update(format="other"),
            "\"format\" must be 'madl-snapshot': this is something else",
        ),
        (
            lambda d: d.update(version=2),
            '"version" must be 1, got 2. '
            "Try: the release of madl that wrote it, or a later one",
        ),
        (lambda d: d.update(device=7), '"device" must be a printable text, got 7'),
        (
            lambda d: d.update(live_nbytes=-1),
            '"live_nbytes" must be a whole number from 0 and below '
            "9223372036854775808, got -1",
        ),
        (
            lambda d: d.update(live_nbytes=True),
            '"live_nbytes" must be a whole number from 0 and below '
            "9223372036854775808, got True",
        ),
        (lambda d: d.update(arenas={}), '"arenas" must be a list, got an object'),
        (lambda d: d.update(arenas=[[]]), "an arena must be an object, got a list"),
        (
            lambda d: _arena(d).update(address="0x1"),
            "\"address\" must be null or below 18446744073709551616, got '0x1'",
        ),
        (
            lambda d: _arena(d).update(committed_runs=[[1]]),
            "a committed run must be [offset, bytes], got a list",
        ),
        (
            lambda d: _arena(d).update(committed_runs=[[0, 512], [0, 512]]),
            "committed runs must lie in the arena, apart and lowest first, "
            "got [0, 512]",
        ),
        (
            lambda d: _arena(d)["blocks"][0].update(state="lost"),
            "\"state\" must be one of live, binned, free, got 'lost'",
        ),
        (
            lambda d: _arena(d)["blocks"][0].update(tag="a\nb"),
            "\"tag\" must be a printable text, got 'a\\nb'",
        ),
        (
            lambda d: _arena(d)["blocks"][0].update(stack=[["a.py", "3", "f"]]),
            "a stack must be a list of [file, line, function]",
        ),
        (
            lambda d: _arena(d)["blocks"][0].update(nbytes=4096),
            "a block of 1024 bytes cannot hold 4096",
        ),
        (
            lambda d: _arena(d)["blocks"].pop(0),
            "blocks must fill an arena without gap or overlap, lowest first, but one "
            "of 5120 bytes starts at 1024 where 0 was expected",
        ),
    ],
)
def test_a_broken_snapshot_is_refused_with_the_reason(
    change: Callable[[dict[str, Any]], object], reason: str, document: dict[str, Any]
) -> None:
    change(document)

    with pytest.raises(FileFormatError) as caught:
        load_snapshot(json.dumps(document).encode())

    assert str(caught.value) == f"<bytes>: {reason}"


def test_blocks_that_end_too_early_are_refused(document: dict[str, Any]) -> None:
    _arena(document)["blocks"].pop()

    with pytest.raises(FileFormatError, match=r"the blocks of an arena of .* end at"):
        load_snapshot(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{\n,", "<bytes>:2: no JSON: Expecting property name"),
        (b"[" * 100_000, "<bytes>: no JSON that could be a snapshot"),
        (b"9" * 5000, "<bytes>: no JSON that could be a snapshot"),
        (b"\xff\xfe\xff", "<bytes>: no JSON that could be a snapshot"),
    ],
)
def test_what_is_no_json_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        load_snapshot(text)

    assert str(caught.value).startswith(message)


def test_the_size_of_the_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_json, "SNAPSHOT_LIMIT_NBYTES", 3)

    with pytest.raises(FileFormatError, match="a snapshot has at most 3 bytes"):
        load_snapshot(gzip.compress(b"1234"))
