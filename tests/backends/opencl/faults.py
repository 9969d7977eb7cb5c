"""Calls to pyopencl of which one fails, and what they have taken and not released."""

from collections.abc import Callable
from typing import Any

from madl.backends.opencl.calls import OpenclCalls

ALLOCATION_FAILURE, OUT_OF_RESOURCES, OUT_OF_HOST_MEMORY = -4, -5, -6
INVALID_VALUE = -30


def cl_error(routine: str, code: int, detail: str = "") -> Exception:
    """Return an error as pyopencl raises it."""
    import pyopencl as cl

    kinds = {ALLOCATION_FAILURE: cl.MemoryError, INVALID_VALUE: cl.LogicError}
    record = cl._cl._ErrorRecord(routine, code, detail)
    error: Exception = kinds.get(code, cl.RuntimeError)(record)
    return error


class FaultyCalls:
    """Passes calls on but those that fail, which have no effect."""

    def __init__(self, *, code: int = OUT_OF_HOST_MEMORY) -> None:
        self._real = OpenclCalls()
        self.Error = self._real.Error
        self.code = code
        self._fails_in = 0
        self._always = ""
        self.taken: list[Any] = []
        self.failed = ""

    def fail_on(self, call: int) -> None:
        """Let a call fail, counted from 1; 0 for none."""
        self._fails_in = call
        self.failed = ""

    def always_fail(self, name: str) -> None:
        """Let every call of a name fail."""
        self._always = name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = getattr(self._real, name)

        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # of any call
            self._fails_in -= 1
            if self._fails_in == 0 or name == self._always:
                self.failed = name
                raise cl_error(f"cl_{name}", self.code)
            made = real(*arguments, **options)
            if name in ("create_buffer", "create_managed"):
                self.taken.append(made)
            if name == "release":
                self.taken = [one for one in self.taken if one is not arguments[0]]
            return made

        return call
