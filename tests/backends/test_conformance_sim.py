"""The device of offsets only passes the tests of every backend."""

from madl.backends.sim import SimBackend
from madl.testing import BackendConformance


class TestSim(BackendConformance):
    def make_backend(self) -> SimBackend:
        return SimBackend()


class TestSimWithoutCommits(BackendConformance):
    def make_backend(self) -> SimBackend:
        return SimBackend(commits=False, total_nbytes=1 << 30)
