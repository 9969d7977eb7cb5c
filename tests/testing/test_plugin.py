"""The pytest plugin: ``madl_no_leaks`` fails a test that leaves memory live.

One run of pytest, in a process of its own, over a file of tests that leak and that do
not.
"""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

CASES = """
import pytest
import madl

pytestmark = pytest.mark.usefixtures("madl_no_leaks")
held = [madl.allocate(77)]


def test_frees():
    madl.allocate(100).free()


def test_leaks():
    held.extend(madl.allocate(1024, tag="weights") for _ in range(2))
    held.append(madl.allocate(100))


def test_leaks_in_a_new_default_pool():
    held.append(madl.allocate(4096, device="sim"))


def test_leaks_in_a_pool_of_its_own(madl_no_leaks):
    pool = madl_no_leaks.watch(madl.Pool("sim"))
    held.append(pool.allocate(512))


def test_frees_what_was_live_before():
    held.pop(0).free()


def test_leaves_a_cycle():
    cycle = [madl.allocate(100)]
    cycle.append(cycle)


def test_fails():
    memory = madl.allocate(100)
    assert memory is None


@pytest.fixture
def memory():
    with madl.allocate(100) as memory:
        yield memory


def test_uses_a_fixture_that_frees(memory):
    assert memory.nbytes == 100
"""
TRY = "Try: free each Memory, and drop the arrays and views made from it."


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what pytest prints."""
    folder: Path = tmp_path_factory.mktemp("leaks")
    (folder / "test_cases.py").write_text(CASES, "utf-8")
    is_installed = entry_points(group="pytest11", name="madl")
    by_hand = [] if is_installed else ["-p", "madl.testing.plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "--rootdir=.", "--color=no", *by_hand],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def outcomes_of(output: str, test: str) -> set[str]:
    """Return PASSED, FAILED and ERROR, as far as a test has them."""
    lines = [line.split() for line in output.splitlines()]
    name = f"test_cases.py::{test}"
    return {line[0] for line in lines if len(line) > 1 and line[1] == name}


@pytest.mark.parametrize(
    "test",
    [
        "test_frees",
        "test_frees_what_was_live_before",
        "test_leaves_a_cycle",
        "test_uses_a_fixture_that_frees",
    ],
)
def test_what_leaves_nothing_passes(output: str, test: str) -> None:
    assert outcomes_of(output, test) == {"PASSED"}


def test_a_test_that_fails_is_not_judged(output: str) -> None:
    assert outcomes_of(output, "test_fails") == {"FAILED"}


@pytest.mark.parametrize(
    ("test", "leaks"),
    [
        (
            "test_leaks",
            "  cpu: 2.0 KiB in 2 blocks, tag weights, allocated at\n"
            "    {file}:14 in <genexpr>\n"
            "    {file}:14 in test_leaks\n"
            "  cpu: 100 B in 1 block, tag (no tag), allocated at\n"
            "    {file}:15 in test_leaks\n",
        ),
        (
            "test_leaks_in_a_new_default_pool",
            "  sim: 4.0 KiB in 1 block, tag (no tag), allocated at\n"
            "    {file}:19 in test_leaks_in_a_new_default_pool\n",
        ),
        (
            "test_leaks_in_a_pool_of_its_own",
            "  sim: 512 B in 1 block, tag (no tag), allocated at\n"
            "    {file}:24 in test_leaks_in_a_pool_of_its_own\n",
        ),
    ],
)
def test_a_leak_is_an_error_that_says_what(output: str, test: str, leaks: str) -> None:
    assert outcomes_of(output, test) == {"PASSED", "ERROR"}
    file = re.search(r"    (\S+test_cases\.py):\d+ in ", output)
    assert file is not None
    listed = leaks.format(file=file[1])
    assert f"\n{test} left memory live that it did not find:\n{listed}{TRY}\n" in output
