"""The command ``madl bench`` in a process of its own."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import madl

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20]
SPREADS = ("pool_ns", "device_us", "device_over_pool", "loop_ns")
COUNTING = """
import atexit, collections, json, os
from madl.backends import hookimpl
from madl.backends.protocol import Capability
from madl.backends.sim import SimBackend

opened = []

class Counting(SimBackend):
    def __init__(self, **options):
        super().__init__(**options)
        self.device = "counting:0"
        self.counts = collections.Counter()
        opened.append(self)

    def reserve(self, nbytes):
        self.counts["reserve"] += 1
        return super().reserve(nbytes)

    def commit(self, reservation, offset, nbytes):
        self.counts["commit"] += 1
        super().commit(reservation, offset, nbytes)

    def release(self, reservation):
        self.counts["release"] += 1
        super().release(reservation)

class ByHandles(Counting):
    def __init__(self, **options):
        super().__init__(**options)
        self.capabilities |= Capability.HANDLE_PAGES

    def page_nbytes_for(self, limit_nbytes):
        return self.page_nbytes

    def choose_pages(self, page_nbytes, *, huge):
        self.counts[f"page {page_nbytes}"] += 1

@hookimpl
def madl_devices():
    return ["counting:0"]

@hookimpl
def madl_open(device):
    options = json.loads(os.environ["COUNTING_OPTIONS"])
    backend = (ByHandles if options.pop("handles", False) else Counting)(**options)
    backend.granularity = int(os.environ["COUNTING_GRANULARITY"])
    return backend

@atexit.register
def save():
    with open(os.environ["COUNTING_FILE"], "w") as file:
        json.dump([one.counts for one in opened], file)
"""


class Plugin:
    """A device that counts what it is asked for."""

    def __init__(self, folder: Path) -> None:
        (folder / "madl_counting.py").write_text(COUNTING)
        self.folder = folder

    def bench(
        self, *arguments: str, granularity: int = 4096, **options: object
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, [str(self.folder), *python_path()]))
        return madl(
            "bench",
            "--device",
            "counting:0",
            *arguments,
            PYTHONPATH=path,
            MADL_PLUGINS="madl_counting",
            MADL_POOL="off",
            COUNTING_FILE=str(self.folder / "counts.json"),
            COUNTING_GRANULARITY=str(granularity),
            COUNTING_OPTIONS=json.dumps(options),
        )

    def counts(self) -> list[dict[str, int]]:
        """Return those of each backend, in the order in which they were opened."""
        found: list[dict[str, int]] = json.loads(
            (self.folder / "counts.json").read_text()
        )
        return found


def python_path() -> list[str]:
    return os.environ.get("PYTHONPATH", "").split(os.pathsep)


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


@pytest.fixture(scope="module", params=["sim", "cpu"])
def figures(request: pytest.FixtureRequest) -> dict[str, Any]:
    done = madl("bench", "--device", request.param, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["device"] == request.param
    return found


def test_json_has_every_size_and_figure(figures: dict[str, Any]) -> None:
    assert set(figures) == {"device", "core", "python", "caveat", "sizes", "notes"}
    assert [row["nbytes"] for row in figures["sizes"]] == SIZES
    for row in figures["sizes"]:
        assert set(row) == {"nbytes", "device_nbytes", "rounds", *SPREADS}
        assert row["rounds"] > 1


def test_json_says_what_ran(figures: dict[str, Any]) -> None:
    assert figures["core"] in {"compiled", "pure Python"}
    assert figures["python"].endswith(f" {platform.python_version()}")
    assert "mean nothing across machines" in figures["caveat"]


def test_every_figure_is_positive_and_lies_in_its_spread(
    figures: dict[str, Any],
) -> None:
    for row in figures["sizes"]:
        for name in SPREADS:
            spread = row[name]
            assert list(spread) == ["median", "least", "most"]
            assert 0 < spread["least"] <= spread["median"] <= spread["most"]


def test_the_ratio_is_of_the_device_to_the_pool(figures: dict[str, Any]) -> None:
    for row in figures["sizes"]:
        device, pool, ratio = (row[n] for n in ("device_us", "pool_ns", SPREADS[2]))

        least = device["least"] * 1000 / pool["most"]
        most = device["most"] * 1000 / pool["least"]

        assert least <= ratio["least"] * 1.001
        assert ratio["most"] <= most * 1.001


@pytest.mark.parametrize("device", ["sim", "cpu"])
def test_the_table_has_every_size_in_eighty_columns(device: str) -> None:
    done = madl("bench", "--device", device)

    lines = done.stdout.splitlines()
    rows = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].strip() == f"a pair on {device}"
    assert lines[1].strip().startswith("core ")
    assert "Python" in lines[1]
    assert max(map(len, lines)) <= 80
    assert [row[0].strip() for row in rows] == [
        "4.0 KiB",
        "64.0 KiB",
        "1.0 MiB",
        "16.0 MiB",
        "empty loop",
    ]
    for row in rows[:4]:
        assert all(cell.strip().endswith(")") for cell in row[1:])
    assert rows[4][1].strip().endswith(")")
    assert "across machines" in " ".join(done.stdout.split())


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
def test_an_unknown_device_is_one_clear_line(options: tuple[str, ...]) -> None:
    done = madl("bench", "--device", "nvme:0", *options)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        "madl: no backend opens device 'nvme:0' (no backend of kind 'nvme')"
    )


def test_an_unknown_option_is_said_with_the_usage() -> None:
    done = madl("bench", "--what")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: madl bench ")


def test_a_device_without_a_pool_has_nothing_to_compare() -> None:
    done = madl("bench", "--device", "shared")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        "Error: shared has no pool to compare: its blocks are not handed out again, "
        "since other processes may still see them. Try: --device cpu\n"
    )


def test_the_help_fits_eighty_columns() -> None:
    done = madl("bench", "-h")

    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_device_is_asked_in_one_call_of_each_kind(plugin: Plugin) -> None:
    plugin.bench("--json")

    asked, _ = plugin.counts()
    assert asked["reserve"] > len(SIZES)
    assert asked["commit"] == asked["release"] == asked["reserve"]


def test_a_device_without_commit_is_not_asked_for_it(plugin: Plugin) -> None:
    done = plugin.bench("--json", commits=False)

    asked, _ = plugin.counts()
    assert [row["nbytes"] for row in json.loads(done.stdout)["sizes"]] == SIZES
    assert set(asked) == {"reserve", "release"}


def test_a_device_of_handles_is_asked_for_one_handle(plugin: Plugin) -> None:
    plugin.bench("--json", handles=True)

    asked, _ = plugin.counts()
    pages = {name: n for name, n in asked.items() if name.startswith("page")}
    assert pages == {f"page {nbytes}": 1 for nbytes in SIZES}


def test_a_warm_pool_asks_the_device_for_next_to_nothing(plugin: Plugin) -> None:
    plugin.bench("--json")

    _, pooled = plugin.counts()
    assert 0 < pooled["commit"] <= 2 * len(SIZES)


def test_a_size_that_the_device_refuses_is_left_out_with_a_note(plugin: Plugin) -> None:
    done = plugin.bench(total_nbytes=4 << 20)

    assert done.returncode == 0
    assert "1.0 MiB" in done.stdout
    assert "16.0 MiB" not in done.stdout
    assert done.stderr.startswith("16.0 MiB is left out: counting:0: cannot place 16.0")
    assert done.stderr.count("\n") == 1


def test_the_note_is_in_the_json_too(plugin: Plugin) -> None:
    done = plugin.bench("--json", total_nbytes=4 << 20)

    figures = json.loads(done.stdout)
    assert [row["nbytes"] for row in figures["sizes"]] == SIZES[:3]
    assert [note.split(":")[0] for note in figures["notes"]] == ["16.0 MiB is left out"]


def test_a_device_that_refuses_every_size_is_an_error(plugin: Plugin) -> None:
    done = plugin.bench(total_nbytes=0)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("madl: counting:0: cannot place 16.0 MiB")


def test_a_coarse_device_is_asked_for_what_it_can_give(plugin: Plugin) -> None:
    figures = json.loads(plugin.bench("--json", granularity=64 << 10).stdout)

    assert [row["device_nbytes"] for row in figures["sizes"]] == [64 << 10, *SIZES[1:]]
    assert figures["notes"] == ["4.0 KiB: the device gives 64.0 KiB at least"]
