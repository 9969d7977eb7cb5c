"""Memory that processes share passes the tests of every backend."""

import sys
from importlib import import_module

import pytest

from madl.backends.shared import SharedBackend
from madl.testing import BackendConformance


class TestShared(BackendConformance):
    most_nbytes = 1 << 30

    def make_backend(self) -> SharedBackend:
        return SharedBackend()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no files in memory")
class TestSharedWithoutMemfd(TestShared):
    """As on macOS, whose files have a name for a moment."""

    @pytest.fixture(autouse=True)
    def _without_memfd(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = import_module("madl.backends.host.shared_posix")
        monkeypatch.setattr(module, "_create", None)
