"""A backend's calls, of which those fail that a test wants to fail.

They take the place of the methods of one object, which stays what it is to whoever
asks for its type or its capabilities.
"""

import functools
from collections.abc import Callable
from typing import Any

from madl.backends.protocol import Reservation
from madl.testing import Fault
from tests.tally import tally

TAKING = ("reserve", "attach")
OTHERS = (
    *("release", "memory_info", "commit", "decommit", "remap", "view", "share"),
    *("copy_from_host", "copy_to_host", "copy_inside", "copy_from_device", "fill"),
    *("stream_key", "record", "is_done", "wait", "synchronize"),
    *("choose_pages", "choose_prefault", "choose_node"),
)
"""All that a pool asks of a backend, questions too."""
UNDONE = (*TAKING, "commit", "decommit", "remap")
"""What a backend itself undoes when it fails: here these never take effect."""


class FaultyCalls:
    """The calls of one backend, counted, with a ledger of what it has given out."""

    def __init__(self, backend: Any) -> None:  # noqa: ANN401  # any, with what it can do
        self.backend = backend
        self.held: list[Reservation] = []
        self.struck: list[str] = []
        """The calls that failed since a fault was armed."""
        self._fault: Fault | None = None
        self._count = 0
        self._is_inside = False  # a backend may call itself: that is one call
        for name in (*TAKING, *OTHERS):
            if hasattr(backend, name):
                call = functools.partial(self._call, name, getattr(backend, name))
                setattr(backend, name, call)

    def arm(self, fault: Fault) -> None:
        """Let calls fail, counted from the next one on."""
        self._fault, self._count = fault, 0
        self.struck = []

    def disarm(self) -> None:
        """Let no call fail any more."""
        self._fault = None

    def _call(
        self,
        name: str,
        real: Callable[..., Any],
        *arguments: Any,  # noqa: ANN401  # of any call
        **options: Any,  # noqa: ANN401  # of any call
    ) -> Any:  # noqa: ANN401  # of any call
        if self._is_inside:
            return real(*arguments, **options)
        self._count += 1
        fault = self._fault
        if fault is not None and fault.strikes(self._count):
            self.struck.append(name)
            tally.faults += 1
            if fault.has_effect and name not in UNDONE:
                self._do(name, real, *arguments, **options)
            raise fault.error(self.backend.device, name, _nbytes(arguments))
        return self._do(name, real, *arguments, **options)

    def _do(
        self,
        name: str,
        real: Callable[..., Any],
        *arguments: Any,  # noqa: ANN401  # of any call
        **options: Any,  # noqa: ANN401  # of any call
    ) -> Any:  # noqa: ANN401  # of any call
        self._is_inside = True
        try:
            answer = real(*arguments, **options)
        finally:
            self._is_inside = False
        if name in TAKING:
            self.held.append(answer)
        if name == "release":
            self.held = [one for one in self.held if one is not arguments[0]]
        return answer


def _nbytes(arguments: tuple[object, ...]) -> int:
    """Return how many bytes a call was about, where it says so in a number."""
    return next((one for one in reversed(arguments) if isinstance(one, int)), 0)
