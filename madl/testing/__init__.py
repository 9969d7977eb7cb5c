"""Test kit for authors of backends: a conformance suite, and a device with faults.

>>> from madl.testing import FakeBackend
>>> FakeBackend(fail_on_call=1).device
'fake'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from madl.testing.case import required_kinds as required_kinds
    from madl.testing.conformance import BackendConformance as BackendConformance
    from madl.testing.fakes import Failure as Failure
    from madl.testing.fakes import FakeBackend as FakeBackend
    from madl.testing.fakes import FakeEvent as FakeEvent
    from madl.testing.fakes import FakeStream as FakeStream
    from madl.testing.fakes import FakeView as FakeView
    from madl.testing.fakes import Fault as Fault
    from madl.testing.fakes import MisuseError as MisuseError
    from madl.testing.leaks import LeakWatch as LeakWatch

    __all__: list[str]

# As in madl itself: pytest imports this package to find its plugin, in every run.
_HOMES = {
    "case": "required_kinds",
    "conformance": "BackendConformance",
    "fakes": "Failure FakeBackend FakeEvent FakeStream FakeView Fault MisuseError",
    "leaks": "LeakWatch",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def _find(name: str) -> Any:  # noqa: ANN401  # any of the names above
    if name not in _HOME_OF:
        raise AttributeError(f"module 'madl.testing' has no attribute {name!r}")
    return getattr(import_module(f"madl.testing.{_HOME_OF[name]}"), name)


if not TYPE_CHECKING:  # to a type checker, such a function makes every name right
    __getattr__ = _find
    __all__ = sorted(_HOME_OF)
