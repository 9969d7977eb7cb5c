"""Where a device is missing, its tests are skipped, or fail where it is required."""

import os
import subprocess
import sys
import unittest
from collections.abc import Callable
from pathlib import Path

import pytest

from madl.backends.protocol import Backend, Capability
from madl.errors import BackendNotFoundError, ConfigurationError
from madl.testing import BackendConformance, FakeBackend, required_kinds


class Absent(BackendConformance):
    def make_backend(self) -> Backend:
        raise BackendNotFoundError("cuda:0", ("cpu",), "there is no driver")


class OfStreams(BackendConformance):
    def make_backend(self) -> Backend:
        return FakeBackend(capabilities=Capability.STREAM_ORDERED)


def raised_by(test: Callable[[], None]) -> BaseException:
    """Return what a test raises; out of this one, a ``SkipTest`` would skip it."""
    try:
        test()
    except (AssertionError, NotImplementedError, unittest.SkipTest) as error:
        return error
    raise AssertionError("it passed")


def test_without_the_device_a_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MADL_REQUIRE", raising=False)

    error = raised_by(Absent().test_a_reservation_is_aligned)

    assert isinstance(error, unittest.SkipTest)
    assert "there is no driver" in str(error)


@pytest.mark.parametrize("kinds", ["cuda", "opencl, cuda"])
def test_without_a_required_device_a_test_fails(
    monkeypatch: pytest.MonkeyPatch, kinds: str
) -> None:
    monkeypatch.setenv("MADL_REQUIRE", kinds)

    error = raised_by(Absent().test_it_has_the_seven_names_of_a_backend)

    assert isinstance(error, AssertionError)
    assert str(error).startswith(
        "MADL_REQUIRE names 'cuda', but this machine does not have it: "
    )


def test_another_required_device_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MADL_REQUIRE", "opencl")

    error = raised_by(Absent().test_a_reservation_is_aligned)

    assert isinstance(error, unittest.SkipTest)
    assert required_kinds() == {"opencl"}


@pytest.mark.parametrize(
    ("kind", "advice"),
    [("cdua", "cuda"), ("1", "browser, cpu, cuda, ecosystem, opencl, shared, sim")],
)
def test_a_required_kind_that_nothing_opens_is_an_error(
    kind: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MADL_REQUIRE", f"cpu, cuda_managed,{kind}")

    with pytest.raises(ConfigurationError) as caught:
        Absent().test_a_reservation_is_aligned()

    assert str(caught.value) == (
        f"MADL_REQUIRE names {kind!r}, which nothing opens. Try: {advice}"
    )


def test_a_capability_that_is_not_claimed_is_skipped() -> None:
    error = raised_by(OfStreams().test_a_release_needs_no_decommit)

    assert isinstance(error, unittest.SkipTest)
    assert str(error) == "fake does not claim COMMIT"


def test_streams_that_cannot_be_made_are_a_failure() -> None:
    error = raised_by(OfStreams().test_an_event_is_reached)

    assert isinstance(error, AssertionError)
    assert "override make_stream(backend) in OfStreams" in str(error)


def test_a_class_without_a_backend_says_what_to_override() -> None:
    class Bare(BackendConformance):
        pass

    error = raised_by(Bare().test_a_reservation_is_aligned)

    assert isinstance(error, NotImplementedError)
    assert "override make_backend() in Bare" in str(error)


def test_unittest_runs_it_too() -> None:
    class Case(BackendConformance, unittest.TestCase):
        def make_backend(self) -> Backend:
            return FakeBackend()

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)

    assert result.wasSuccessful()
    assert len(result.skipped) < result.testsRun * 2 / 3


def test_pytest_shows_why_it_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_absent.py").write_text(
        "from madl.errors import BackendNotFoundError\n"
        "from madl.testing import BackendConformance\n"
        "class TestAbsent(BackendConformance):\n"
        "    def make_backend(self):\n"
        "        raise BackendNotFoundError('cuda:0', (), 'there is no driver')\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "--rootdir=.", "--color=no"],
        cwd=tmp_path,
        env={**os.environ, "MADL_REQUIRE": ""},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert " passed" not in done.stdout
    assert "(there is no driver)" in done.stdout
