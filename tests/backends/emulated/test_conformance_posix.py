"""Every emulated system, and the fallback, pass the tests of every backend."""

import pytest

from madl.backends.cpu import CpuBackend
from madl.backends.host.plain import PlainMemory
from madl.testing import BackendConformance
from tests.backends.emulated.posix import OS_PAGES, Posix, open_memory


class TestEmulated(BackendConformance):
    @pytest.fixture(autouse=True)
    def system(self, posix: Posix) -> None:
        self.posix = posix

    def make_backend(self) -> CpuBackend:
        return CpuBackend(_memory=open_memory(self.posix))


class TestEmulatedInSmallPages(TestEmulated):
    def make_backend(self) -> CpuBackend:
        page_nbytes = OS_PAGES[self.posix.system]
        memory = open_memory(self.posix)
        return CpuBackend(page_nbytes=page_nbytes, _memory=memory)


class TestFallback(BackendConformance):
    def make_backend(self) -> CpuBackend:
        return CpuBackend(_memory=PlainMemory())
