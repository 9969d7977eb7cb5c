"""OpenCL passes the tests of every backend: buffers, and shared virtual memory."""

from typing import Any

import pytest

from madl.backends.opencl import OpenclBackend
from madl.testing import BackendConformance

pytestmark = pytest.mark.opencl


class TestOpencl(BackendConformance):
    def make_backend(self) -> OpenclBackend:
        return OpenclBackend()

    def make_stream(self, backend: Any) -> object:  # noqa: ANN401  # the suite knows no OpenclBackend
        import pyopencl as cl

        return cl.CommandQueue(backend.context)

    def bytes_of_view(self, backend: Any, view: Any) -> bytes:  # noqa: ANN401  # a native object
        import pyopencl as cl

        found = bytearray(view.size)
        cl.enqueue_copy(backend.queue, found, view)
        return bytes(found)


class TestOpenclOfAQueue(TestOpencl):
    def make_backend(self) -> OpenclBackend:
        context = OpenclBackend().context

        import pyopencl as cl

        return OpenclBackend(cl.CommandQueue(context))


class TestFineGrained(TestOpencl):
    def make_backend(self) -> OpenclBackend:
        return OpenclBackend("opencl_managed:0", memory="fine")


class TestCoarseGrained(TestOpencl):
    def make_backend(self) -> OpenclBackend:
        return OpenclBackend("opencl_managed:0", memory="coarse")
