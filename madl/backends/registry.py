"""The registry: which backend opens a device, or owns an array, and why none does.

madl's own kinds are opened without a look at what else is installed: finding plugins
takes longer than opening the host.
"""

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from madl.backends.protocol import ArrayPlace, Backend, missing_names
from madl.errors import BackendNotFoundError, MadlError

if TYPE_CHECKING:
    from madl.backends.plugins import Claim, Plugins

_DEVICE = re.compile(r"([a-z][a-z0-9_]*)(?::\d+)?")

BUILT_IN = {
    "cpu": "madl.backends.cpu",
    "cuda": "madl.backends.cuda",
    "opencl": "madl.backends.opencl",
    "shared": "madl.backends.shared",
    "sim": "madl.backends.sim",
}
"""madl's own kinds, and the modules that open them. A kind may have variants with an
underscore, as in ``"cuda_managed:0"``, which the same module opens."""

failures: dict[str, BaseException] = {}
"""What was raised when a kind was last used, where that failed; for ``madl info``."""

_plugins: "Plugins | None" = None


class Opener(Protocol):
    """What opens the devices of a kind; see ``madl.backends.hookspecs``."""

    def madl_devices(self) -> list[str] | None:
        """Return the devices that can be opened now."""

    def madl_open(self, device: str) -> Backend | None:
        """Return a backend for a device."""


class PluginState(NamedTuple):
    """What is known of a plugin once it was imported."""

    kind: str
    distribution: str
    module: str
    devices: tuple[str, ...]
    failure: str
    """In words; empty when all is well."""


def kinds() -> tuple[str, ...]:
    """Return the kinds of devices that some backend claims, without opening any."""
    return tuple(sorted({*BUILT_IN, *_installed().kinds()}))


def devices() -> tuple[str, ...]:
    """Return the devices that can be opened on this machine now.

    Imports every backend. Why one has none is kept in ``failures``.
    """
    return tuple(device for kind in kinds() for device in devices_of(kind))


def devices_of(kind: str) -> tuple[str, ...]:
    """Return the devices of one kind; none where it fails, see ``failures``."""
    try:
        found = tuple(_opener_of(kind).madl_devices() or ())
        for device in found:
            _check_listed(kind, device)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything, as by sys.exit()
        failures[kind] = error
        return ()
    failures.pop(kind, None)
    return found


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
    kind = _claimed_kind(match[1])
    try:
        backend = _opener_of(kind).madl_open(device=device)
    except BackendNotFoundError as error:
        failures[kind] = error
        raise BackendNotFoundError(device, kinds(), error.reason) from error.__cause__
    except (MadlError, KeyboardInterrupt):  # of a device that is there; of the user
        raise
    except BaseException as error:  # of a broken driver or plugin
        failures[kind] = error
        raise BackendNotFoundError(device, kinds(), in_words(error)) from error
    if backend is None:
        there = ", ".join(devices_of(kind)) or "none"
        raise BackendNotFoundError(device, kinds(), f"devices of {kind!r}: {there}")
    failures.pop(kind, None)
    return backend


def check_backend(backend: object) -> Backend:
    """Return a backend that a user has passed.

    Raises:
        TypeError: It is none: one of the seven mandatory names is missing.
    """
    if isinstance(backend, type) or missing_names(backend, Backend):
        raise TypeError(
            "device must be a name such as 'cpu' or a backend, "
            f"got {backend!r} ({type(backend).__name__})"
        )
    return cast("Backend", backend)


def wrap_array(array: object) -> ArrayPlace | None:
    """Return where an array of another library lies; ``None`` where only the CPU can.

    Raises:
        NotContiguousError, ValueError, TypeError: It cannot be copied as it is.
    """
    kind = _kind_of_array(array)
    if kind is None:
        return None
    place: ArrayPlace = import_module(BUILT_IN[kind]).wrap_array(array)
    return place


def plugin_states() -> tuple[PluginState, ...]:
    """Import every plugin, and return what came of each."""
    return tuple(_state_of(claim) for claim in _installed().claims)


def forget_plugins() -> None:
    """Look for plugins again when next asked: others may be installed by now."""
    global _plugins
    _plugins = None
    failures.clear()


def in_words(error: BaseException) -> str:
    """Return an error on one line."""
    if isinstance(error, BackendNotFoundError):
        return error.reason
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def how_many(count: int, noun: str) -> str:
    """Return how many devices there are, as the reason why one is not found."""
    if count == 0:
        return f"there is no {noun}"
    there = f"there is 1 {noun}" if count == 1 else f"there are {count} {noun}s"
    return f"{there}, counted from 0"


def _installed() -> "Plugins":
    global _plugins
    found = _plugins
    if found is None:
        from madl.backends.plugins import Plugins

        found = _plugins = Plugins(BUILT_IN)
    return found


def _opener_of(kind: str) -> Opener:
    if kind in BUILT_IN:
        return cast("Opener", import_module(BUILT_IN[kind]))
    return cast("Opener", _installed().load(kind).hook)


def _kind_of_array(array: object) -> str | None:
    """Return the kind of device in whose memory an array lies; ``None`` on the host.

    An array is recognised by what it offers, or by its class where a program has
    imported its library already: nothing is imported to find out.
    """
    pyopencl = sys.modules.get("pyopencl.array")
    if pyopencl is not None and isinstance(array, pyopencl.Array):
        return "opencl"
    return "cuda" if hasattr(array, "__cuda_array_interface__") else None


def _claimed_kind(kind: str) -> str:
    """Return what a kind is a variant of: ``"cuda"`` for ``"cuda_managed"``."""
    families = [*_families(kind)]
    for family in families:
        if family in BUILT_IN:
            return family
    claimed = _installed().kinds()
    return next((family for family in families if family in claimed), kind)


def _families(kind: str) -> Iterator[str]:
    """Yield a kind, and what is left without its parts after an underscore."""
    while kind:
        yield kind
        kind = kind.rpartition("_")[0]


def _check_listed(kind: str, device: str) -> None:
    match = _DEVICE.fullmatch(device)
    if match is None or kind not in _families(match[1]):
        raise BackendNotFoundError(
            device, (), f"it lists {device!r}, which is no device of kind {kind!r}"
        )


def _state_of(claim: "Claim") -> PluginState:
    try:
        _installed().check_claim(claim)
        _installed().load_claim(claim).check_pending()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # as above: a plugin may raise anything
        return PluginState(*claim[:3], (), in_words(error))
    found = devices_of(claim.kind)
    failure = failures.get(claim.kind)
    return PluginState(*claim[:3], found, "" if failure is None else in_words(failure))
