"""Each sort of CUDA memory passes the tests of every backend."""

from typing import cast
from unittest import SkipTest

import pytest
from cuda.bindings import driver

from madl.backends.cuda import CudaBackend
from madl.backends.protocol import (
    Backend,
    CopyBackend,
    FillBackend,
    RemapBackend,
    StreamOrderedBackend,
)
from madl.errors import MissingCapabilityError
from madl.testing import BackendConformance
from tests.backends.cuda.emulator import Emulator

MIB = 1 << 20


def as_protocols(
    backend: CudaBackend,
) -> tuple[RemapBackend, CopyBackend, FillBackend, StreamOrderedBackend]:
    """Return a backend as what it claims to be, for mypy to see."""
    return backend, backend, backend, backend


class CudaConformance(BackendConformance):
    __test__ = False
    memory = "pages"
    most_nbytes = 64 * MIB

    def make_backend(self) -> CudaBackend:
        try:
            return CudaBackend(0, memory=self.memory)
        except MissingCapabilityError as error:
            raise SkipTest(str(error)) from error

    def make_stream(self, backend: Backend) -> object:
        with cast("CudaBackend", backend)._device.current():
            status, stream = driver.cuStreamCreate(1)
        assert int(status) == 0
        return stream


class TestPages(CudaConformance):
    __test__ = True


class TestLargePages(CudaConformance):
    __test__ = True

    def make_backend(self) -> CudaBackend:
        return CudaBackend(0, memory="pages", page_nbytes=4 * MIB)


class TestSegments(CudaConformance):
    __test__ = True
    memory = "segments"


class TestAsync(CudaConformance):
    __test__ = True
    memory = "async"


class TestPinned(CudaConformance):
    __test__ = True
    memory = "pinned"


class TestManaged(CudaConformance):
    __test__ = True
    memory = "managed"


class Late(CudaConformance):
    """Queued work is done when somebody waits for it, and not before."""

    @pytest.fixture(autouse=True)
    def _late(self, emulator: Emulator) -> None:
        emulator.set(lazy=1)


class TestPagesLate(Late):
    __test__ = True


class TestAsyncLate(Late):
    __test__ = True
    memory = "async"


class TestPinnedLate(Late):
    __test__ = True
    memory = "pinned"
