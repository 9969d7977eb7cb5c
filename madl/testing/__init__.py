"""Test kit for authors of backends: a conformance suite, and a device with faults.

>>> from madl.testing import FakeBackend
>>> FakeBackend(fail_on_call=1).device
'fake'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from madl.testing.case import required_kinds
    from madl.testing.conformance import BackendConformance
    from madl.testing.fakes import (
        Failure,
        FakeBackend,
        FakeEvent,
        FakeStream,
        FakeView,
        Fault,
        MisuseError,
    )
    from madl.testing.leaks import LeakWatch

# As in madl itself: pytest imports this package to find its plugin, in every run.
_HOMES = {
    "BackendConformance": "conformance",
    "Failure": "fakes",
    "FakeBackend": "fakes",
    "FakeEvent": "fakes",
    "FakeStream": "fakes",
    "FakeView": "fakes",
    "Fault": "fakes",
    "LeakWatch": "leaks",
    "MisuseError": "fakes",
    "required_kinds": "case",
}

__all__ = [
    "BackendConformance",
    "Failure",
    "FakeBackend",
    "FakeEvent",
    "FakeStream",
    "FakeView",
    "Fault",
    "LeakWatch",
    "MisuseError",
    "required_kinds",
]


def _find(name: str) -> Any:  # noqa: ANN401  # any of the names above
    if name not in _HOMES:
        raise AttributeError(f"module 'madl.testing' has no attribute {name!r}")
    return getattr(import_module(f"madl.testing.{_HOMES[name]}"), name)


if not TYPE_CHECKING:  # to a type checker, such a function makes every name right
    __getattr__ = _find
