"""Which backend opens a device, and why one cannot."""

import re
from collections.abc import Callable

from madl.backends.protocol import Backend
from madl.errors import BackendNotFoundError

_DEVICE = re.compile(r"([a-z][a-z0-9_]*)(?::(\d+))?")


def _open_cpu() -> Backend:
    from madl.backends.cpu import CpuBackend

    return CpuBackend()


def _open_sim() -> Backend:
    from madl.backends.sim import SimBackend

    return SimBackend()


_BUILT_IN: dict[str, Callable[[], Backend]] = {"cpu": _open_cpu, "sim": _open_sim}

failures: dict[str, Exception] = {}
"""Why kinds that are installed could not be opened, for ``madl info``."""


def kinds() -> tuple[str, ...]:
    """Return the kinds of devices that some backend claims, without opening any."""
    return tuple(sorted(_BUILT_IN))


def devices() -> tuple[str, ...]:
    """Return the devices that can be opened on this machine now."""
    found = []
    for kind in kinds():
        try:
            found.append(open_device(kind).device)
        except BackendNotFoundError as error:
            failures[kind] = error
    return tuple(found)


def open_device(device: str) -> Backend:
    """Return a backend for a device.

    Args:
        device: A kind, or a kind and an index: ``"cpu"``, ``"cuda:0"``.

    Raises:
        BackendNotFoundError: No backend opens it; the error says why.
    """
    match = _DEVICE.fullmatch(device)
    if match is None:
        raise BackendNotFoundError(
            device, kinds(), "a device is named like 'cpu' or 'cuda:0'"
        )
    kind, index = match.groups()
    opener = _BUILT_IN.get(kind)
    if opener is None:
        raise BackendNotFoundError(device, kinds(), f"no backend of kind {kind!r}")
    if index not in (None, "0"):
        raise BackendNotFoundError(device, kinds(), f"there is one {kind} device only")
    return opener()
