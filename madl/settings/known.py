"""The table of settings, and how environment variables are parsed and validated.

A setting is found in the environment under its variable. Any other variable that begins
with ``MADL_`` is an error: a misspelt setting would have no effect otherwise.
"""

import os
from collections.abc import Collection
from typing import NamedTuple

from madl.errors import ConfigurationError
from madl.settings.kinds import (
    DEBUG,
    FIT,
    HUGE_PAGES,
    NAMES,
    NBYTES,
    SWITCH,
    Kind,
    parse_by_device,
    shown,
)

PREFIX = "MADL_"


_DEFAULT_POOL = "a device's default pool is made"
_ANY_POOL = "a pool is made without `pooling=`"
_ONCE = "madl first looks for plugins"

_MEANINGS = {
    "limit": "Bytes that a default pool may have committed at once, PyTorch's too.",
    "page_size": "The unit in which it commits; `none` for what suits device and "
    "limit.",
    "huge_pages": "Whether it asks for huge OS pages; `none` for what suits the pages.",
    "fit": "Which free block it takes: the lowest that fits, or the smallest.",
    "recycle": "Whether it commits idle pages elsewhere before it takes new ones.",
    "pooling": "Whether freed memory is kept for reuse; `off` for sanitizers and "
    "memory profilers.",
    "debug": "Whether pools look for damage, with guards around blocks; `pages` adds "
    "guard pages where there can be some.",
    "plugins": "Modules to use as plugins, as in `madl_toy,fast=my.module`.",
    "disable_plugin_autoload": "Whether the plugins that are installed are left out.",
    "ignore": "Variables that begin with `MADL_` and belong to other programs.",
}


class Setting(NamedTuple):
    """Something that ``configure`` and an environment variable say."""

    option: str
    """What ``configure`` calls it; a pool's argument has the same name."""
    variable: str
    kind: Kind
    default: object
    is_read: str
    """When."""

    @property
    def is_by_device(self) -> bool:
        """Whether each device may have a value of its own."""
        return self.is_read in (_DEFAULT_POOL, _ANY_POOL)

    @property
    def meaning(self) -> str:
        """What it says, in a sentence."""
        return _MEANINGS[self.option]


SETTINGS = {
    setting.option: setting
    for setting in (
        Setting("limit", "MADL_LIMIT", NBYTES, None, _DEFAULT_POOL),
        Setting("page_size", "MADL_PAGE_SIZE", NBYTES, None, _DEFAULT_POOL),
        Setting("huge_pages", "MADL_HUGE_PAGES", HUGE_PAGES, None, _DEFAULT_POOL),
        Setting("fit", "MADL_FIT", FIT, "first", _DEFAULT_POOL),
        Setting("recycle", "MADL_RECYCLE", SWITCH, True, _DEFAULT_POOL),
        Setting("pooling", "MADL_POOL", SWITCH, True, _ANY_POOL),
        Setting("debug", "MADL_DEBUG", DEBUG, False, "a pool is made without `debug=`"),
        Setting("plugins", "MADL_PLUGINS", NAMES, (), _ONCE),
        Setting(
            "disable_plugin_autoload",
            "MADL_DISABLE_PLUGIN_AUTOLOAD",
            SWITCH,
            False,
            _ONCE,
        ),
        Setting("ignore", "MADL_IGNORE", NAMES, (), "madl reads any other"),
    )
}

DEFAULT_POOL_OPTIONS = tuple(
    setting.option for setting in SETTINGS.values() if setting.is_read == _DEFAULT_POOL
)

OTHERS = {
    "MADL_COMPILE": "Read when madl is built: `1` compiles its core, or fails; `0` "
    "leaves it in Python.",
    "MADL_REQUIRE": "Read by `madl.testing`: kinds of devices whose absence is a "
    "failure, and no reason to skip a test.",
}
"""Variables that are read elsewhere, and what they mean."""

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
        return parse_by_device(given, setting.kind, name)
    return setting.kind.parse(given, name)


def suggestion(name: str, names: Collection[str]) -> str:
    """Return which of the names was meant; an empty text if none is alike."""
    from difflib import get_close_matches  # not in programs that have no such error

    return next(iter(get_close_matches(name, sorted(names), 1)), "")
