"""Parse and format the values of settings: switches, byte counts, names, by device."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, cast

from madl.sizes import format_exactly, parse_nbytes

Fit = Literal["first", "best"]
FITS: tuple[Fit, ...] = ("first", "best")
"""How a pool may choose among the free blocks that are large enough."""

ALL_DEVICES = ""
"""What stands for the devices that a setting does not name."""

_SELECTOR = re.compile(r"[a-z][a-z0-9_]*(:\d+)?")
_SWITCH = {
    **dict.fromkeys(("on", "1", "true", "yes"), True),
    **dict.fromkeys(("off", "0", "false", "no"), False),
}


Parse = Callable[[object, str], object]
"""Called with what was given and the name that errors use."""


def switch(given: object, name: str, *, allowed: str = "on or off") -> bool:
    """Parse ``on`` or ``off``; errors say what else is allowed."""
    found = _SWITCH.get(given.lower()) if isinstance(given, str) else given
    if not isinstance(found, bool):
        raise ValueError(f"{name} must be {allowed}, got {given!r}")
    return found


def huge_pages(given: object, name: str) -> bool | str | None:
    """Parse ``on``, ``off``, ``explicit`` or ``none``."""
    if given is None or given == "none":
        return None
    if given == "explicit":
        return "explicit"
    return switch(given, name, allowed="on, off, explicit or none")


def debug(given: object, name: str) -> bool | str:
    """Parse ``on``, ``off`` or ``pages``."""
    if given == "pages":
        return "pages"
    return switch(given, name, allowed="on, off or pages")


def nbytes_or_none(given: object, name: str) -> int | None:
    """Parse a byte count, as in ``8 GiB``, or ``none``."""
    if given is None or given == "none":
        return None
    return parse_nbytes(cast("int | str", given), name=name)


def fit(given: object, name: str) -> str:
    """Parse ``first`` or ``best``."""
    if not isinstance(given, str) or given not in FITS:
        raise ValueError(f"{name} must be {' or '.join(FITS)}, got {given!r}")
    return given


def names(given: object, name: str) -> tuple[str, ...]:
    """Parse names with commas."""
    texts = given.split(",") if isinstance(given, str) else given
    found = tuple(texts) if isinstance(texts, Iterable) else (None,)
    if not all(isinstance(text, str) for text in found):
        raise TypeError(f"{name} must be names with commas, got {given!r}")
    return tuple(text.strip() for text in found if text.strip())


def parse_by_device(given: object, parse: Parse, name: str) -> dict[str, object]:
    """Return the value for each device that is named, and for all others.

    Args:
        given: One value for all devices; or a mapping; or a text such as
            ``"8 GiB, cuda=20 GiB, cuda:1=10 GiB"``.
        parse: Applied to each value.
        name: For errors.

    >>> parse_by_device("first, cuda:1=best", fit, "fit")
    {'': 'first', 'cuda:1': 'best'}
    """
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, str) and ("=" in given or "," in given):
        parts = (item.rpartition("=") for item in given.split(",") if item.strip())
        pairs = [(device.strip(), value.strip()) for device, _, value in parts]
    else:
        pairs = [(ALL_DEVICES, given)]
    found = dict[str, object]()
    for device, value in pairs:
        is_selector = isinstance(device, str) and _SELECTOR.fullmatch(device)
        if device != ALL_DEVICES and not is_selector:
            raise ValueError(
                f"{name} must name devices like 'cuda' or 'cuda:0', got {device!r}"
            )
        if device in found:
            which = repr(device) if device else "all devices"
            raise ValueError(f"{name} must have one value for {which}, got {given!r}")
        found[device] = parse(value, name)
    return found


def kind_of(device: str) -> str:
    """Return a device's kind: ``"cuda"`` for ``"cuda:1"``."""
    return device.partition(":")[0]


def for_device(values: Mapping[str, object], device: str, default: object) -> object:
    """Return the value for a device: its own, or its kind's, or that for all.

    >>> for_device({"": 1, "cuda": 2, "cuda:1": 3}, "cuda:0", None)
    2
    """
    for selector in (f"{device}:0", device, kind_of(device), ALL_DEVICES):
        if selector in values:
            return values[selector]
    return default


def shown(value: object) -> str:
    """Return a value as the text that means it.

    >>> shown({"": True, "cuda": 1 << 30})
    'on, cuda=1.0 GiB'
    """
    if isinstance(value, Mapping):
        return ", ".join(
            f"{device}={shown(one)}" if device else shown(one)
            for device, one in value.items()
        )
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    return format_exactly(value) if isinstance(value, int) else str(value)
