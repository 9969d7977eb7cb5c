"""What the environment says: known variables, and none that nobody knows."""

import os
from collections.abc import Collection

from madl.errors import ConfigurationError
from madl.settings.kinds import parse_by_device, shown
from madl.settings.known import OF_TESTS_AND_TOOLS, OTHERS, PREFIX, SETTINGS, Setting

_VARIABLES = frozenset(setting.variable for setting in SETTINGS.values())
KNOWN = _VARIABLES | OTHERS.keys() | OF_TESTS_AND_TOOLS


def check_names(ignored: Collection[str]) -> None:
    """Raise for a variable that begins with ``MADL_`` and is none of madl's.

    A setting with a letter too many would be no setting, and nobody would notice.
    """
    unknown = [
        name
        for name in os.environ
        if name.startswith(PREFIX) and name not in KNOWN and name not in ignored
    ]
    if unknown:
        name = min(unknown)
        close = suggestion(name, _VARIABLES | OTHERS.keys())
        instead = f"{close} instead, or " if close else ""
        raise ConfigurationError(
            name,
            f"the environment has {name}, which is no setting of madl's",
            f"{instead}{SETTINGS['ignore'].variable}={name} if it is another program's",
        )


def value_of(setting: Setting) -> object:
    """Return what the environment says; ``None`` if nothing, or an empty text.

    Raises:
        ConfigurationError: It is malformed.
    """
    text = os.environ.get(setting.variable, "").strip()
    if not text:
        return None
    try:
        return parsed(setting, text, setting.variable)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(
            setting.variable,
            str(error),
            f"unset it, which means {shown(setting.default)}",
        ) from None


def parsed(setting: Setting, given: object, name: str) -> object:
    """Return what was given for a setting: one value, or one for each device."""
    if setting.is_by_device:
        return parse_by_device(given, setting.kind, name)
    return setting.kind.parse(given, name)


def suggestion(name: str, names: Collection[str]) -> str:
    """Return which of the names was meant; an empty text if none is alike."""
    from difflib import get_close_matches  # not in programs that have no such error

    return next(iter(get_close_matches(name, sorted(names), 1)), "")
