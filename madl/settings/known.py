"""The table of settings, and how environment variables are parsed and validated.

A setting is found in the environment under its variable. Any other variable that begins
with ``MADL_`` is an error: a misspelt setting would have no effect otherwise.
"""

import os
from collections.abc import Collection
from typing import NamedTuple

from madl.errors import ConfigurationError
from madl.settings import kinds
from madl.settings.kinds import Parse, parse_by_device, shown

PREFIX = "MADL_"


class Setting(NamedTuple):
    """Something that ``configure`` and an environment variable say."""

    option: str
    """What ``configure`` calls it; a pool's argument has the same name."""
    variable: str
    parse_one: Parse
    default: object

    @property
    def is_by_device(self) -> bool:
        """Whether each device may have a value of its own."""
        return self.option in (*DEFAULT_POOL_OPTIONS, "pooling")


SETTINGS = {
    setting.option: setting
    for setting in (
        Setting("limit", "MADL_LIMIT", kinds.nbytes_or_none, None),
        Setting("page_size", "MADL_PAGE_SIZE", kinds.nbytes_or_none, None),
        Setting("huge_pages", "MADL_HUGE_PAGES", kinds.huge_pages, None),
        Setting("fit", "MADL_FIT", kinds.fit, "first"),
        Setting("recycle", "MADL_RECYCLE", kinds.switch, True),
        Setting("pooling", "MADL_POOL", kinds.switch, True),
        Setting("debug", "MADL_DEBUG", kinds.debug, False),
        Setting("plugins", "MADL_PLUGINS", kinds.names, ()),
        Setting(
            "disable_plugin_autoload",
            "MADL_DISABLE_PLUGIN_AUTOLOAD",
            kinds.switch,
            False,
        ),
        Setting("ignore", "MADL_IGNORE", kinds.names, ()),
    )
}
"""What each means, and when it is read, is in ``docs/how-to/configure.md``."""

DEFAULT_POOL_OPTIONS = ("limit", "page_size", "huge_pages", "fit", "recycle")
OTHERS = ("MADL_COMPILE", "MADL_REQUIRE")
"""Variables that are read elsewhere: by the build and by ``madl.testing``."""

KNOWN = frozenset((*(setting.variable for setting in SETTINGS.values()), *OTHERS))


def check_names(ignored: Collection[str]) -> None:
    """Raise for a variable that begins with ``MADL_`` and is none of madl's."""
    unknown = [
        name
        for name in os.environ
        if name.startswith(PREFIX) and name not in KNOWN and name not in ignored
    ]
    if unknown:
        name = min(unknown)
        close = suggestion(name, KNOWN)
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
        return parse_by_device(given, setting.parse_one, name)
    return setting.parse_one(given, name)


def suggestion(name: str, names: Collection[str]) -> str:
    """Return which of the names was meant; an empty text if none is alike."""
    from difflib import get_close_matches  # not in programs that have no such error

    return next(iter(get_close_matches(name, sorted(names), 1)), "")
