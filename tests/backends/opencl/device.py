"""The OpenCL device that tests use, or the reason why they are skipped."""

import threading
from typing import Any

import pytest

from madl.backends.opencl.devices import all_devices
from madl.errors import BackendNotFoundError
from madl.testing.case import required_kinds


def pyopencl_or_skip() -> Any:  # noqa: ANN401  # pyopencl has no types here
    """Return pyopencl where there is a device; with MADL_REQUIRE=opencl, or fail."""
    try:
        all_devices()
    except BackendNotFoundError as error:
        if "opencl" in required_kinds():
            raise
        pytest.skip(str(error), allow_module_level=True)
    import pyopencl

    return pyopencl


class Gate:
    """What is queued behind it waits until the test opens it."""

    def __init__(self, context: object) -> None:
        import pyopencl as cl

        self._cl = cl
        self._event = cl.UserEvent(context)

    def hold(self, queue: object) -> None:
        """Let all that is queued from now on wait."""
        self._cl.enqueue_barrier(queue, wait_for=[self._event])

    @property
    def is_open(self) -> bool:
        """Whether it has been opened."""
        return bool(self._event.command_execution_status <= 0)

    def open(self) -> None:
        """Let go what waits."""
        if not self.is_open:
            self._event.set_status(self._cl.command_execution_status.COMPLETE)

    def open_soon(self) -> threading.Timer:
        """Open it after a while, whatever this thread waits for."""
        timer = threading.Timer(0.3, self.open)
        timer.start()
        return timer
