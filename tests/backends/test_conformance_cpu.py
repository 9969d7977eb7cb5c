"""The host's memory passes the tests of every backend."""

from madl.backends.cpu import CpuBackend
from madl.testing import BackendConformance


class TestCpu(BackendConformance):
    def make_backend(self) -> CpuBackend:
        return CpuBackend()


class TestCpuInSmallPages(BackendConformance):
    def make_backend(self) -> CpuBackend:
        return CpuBackend(page_nbytes=65536)
