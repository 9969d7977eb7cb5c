"""Settings of the process: ``configure()``, ``MADL_*`` variables, and their origins.

A call of ``configure`` takes precedence over the environment, the environment over the
default. A value is read when it is needed; its readers are noted, to warn of changes
that come too late for them.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypedDict, Unpack, cast

from madl import stacks
from madl.errors import ConfigurationError
from madl.settings.kinds import ALL_DEVICES, for_device, kind_of, shown
from madl.settings.known import (
    DEFAULT_POOL_OPTIONS,
    SETTINGS,
    Setting,
    check_names,
    parsed,
    suggestion,
    value_of,
)

_Bytes = int | str | None
_Switch = bool | str


class Options(TypedDict, total=False):
    """What ``configure`` takes."""

    limit: _Bytes | Mapping[str, _Bytes]
    page_size: _Bytes | Mapping[str, _Bytes]
    huge_pages: _Switch | Mapping[str, _Switch | None] | None
    fit: str | Mapping[str, str]
    recycle: _Switch | Mapping[str, _Switch]
    pooling: _Switch | Mapping[str, _Switch]
    debug: _Switch
    plugins: str | Iterable[str]
    disable_plugin_autoload: _Switch
    ignore: str | Iterable[str]


class LateSettingWarning(UserWarning):
    """A setting is changed after it was read; what read it keeps the old value."""


class SettingState(NamedTuple):
    """A setting as it is now.

    Attributes:
        option: What ``configure`` calls it.
        variable: The variable of the environment that says it.
        value: As a text that means it.
        origin: ``"default"``, ``"environment"`` or ``"configure"``.
        where: File and line that called ``configure``; ``None`` otherwise.
        late: Readers of another value, which they keep.
    """

    option: str
    variable: str
    value: str
    origin: str
    where: str | None
    late: tuple[str, ...]


class _Said(NamedTuple):
    value: object
    """One value; or one for each device, if the setting is by device."""
    origin: str
    where: str | None = None


class _Reading(NamedTuple):
    value: object
    where: str


# Each changes by one call of dict's own, which is atomic to other threads: no lock.
_configured: dict[str, _Said] = {}
_readings: dict[tuple[str, str], _Reading] = {}
"""By option and device, the latest."""


def configure(**options: Unpack[Options]) -> None:
    """Set options for the whole process. Thread-safe.

    They take precedence over the environment; an argument such as ``Pool(limit=...)``
    over them. Call it before the first allocation: existing pools keep what they have.

    Args:
        options: ``limit``, ``page_size``, ``huge_pages``, ``fit`` and ``recycle`` of
            default pools, and ``pooling`` of every pool, mean what they mean to
            ``Pool``. They may be given by device, as a mapping or a text:
            ``limit="8 GiB, cuda=20 GiB, cuda:1=10 GiB"``. ``debug`` is for all pools;
            ``plugins``, ``disable_plugin_autoload`` and ``ignore`` are for the
            process. See ``docs/how-to/configure.md``.

    Raises:
        TypeError, ValueError, OverflowError: An option is unknown or malformed.
            Nothing is set then.
        ConfigurationError: The environment has what no setting is named.

    Warns:
        LateSettingWarning: One of them has been read; its reader keeps the old value.
    """
    where = _here()
    said = dict[str, _Said]()
    for option, given in options.items():
        if option not in SETTINGS:
            close = suggestion(option, SETTINGS)
            known = f"{close}=" if close else ", ".join(f"{one}=" for one in SETTINGS)
            raise TypeError(f"configure has no option {option!r}. Try: {known}")
        value = parsed(SETTINGS[option], given, option)
        said[option] = _Said(value, "configure", where)
    _check_names(said.get("ignore"))
    for option, one in said.items():
        late = _late(SETTINGS[option], one)
        if late:
            warnings.warn(
                f"{option} is set to {shown(one.value)} when it has been read: "
                f"{'; '.join(late)}. Try: call madl.configure before the first "
                "allocation",
                LateSettingWarning,
                stacklevel=stacks.levels(),
            )
    _configured.update(said)


def configuration() -> tuple[SettingState, ...]:
    """Return every setting: its value, who said so, and whether too late. Thread-safe.

    Raises:
        ConfigurationError: The environment has what no setting is named, or a value
            that a setting cannot have.
    """
    _check_names()
    return tuple(_state(setting) for setting in SETTINGS.values())


def read(option: str, device: str = ALL_DEVICES) -> object:
    """Return a setting's value, and note the calling line as its reader. Thread-safe.

    Raises:
        ConfigurationError: As for ``configuration``.
    """
    _check_names()
    return _read(option, device, _here())


def default_pool_options(
    device: str, kinds: Callable[[], Iterable[str]]
) -> dict[str, object]:
    """Return arguments of a device's default pool. Thread-safe.

    Args:
        device: As its backend calls it.
        kinds: Called for the kinds of devices there are, if a setting names any.

    Raises:
        ConfigurationError: As for ``configuration``; or a setting names a device of
            a kind that there is not.
    """
    _check_names()
    _check_devices(kinds)
    where = _here()
    return {option: _read(option, device, where) for option in DEFAULT_POOL_OPTIONS}


def origins(options: Iterable[str]) -> str:
    """Return in words where options have their values from; empty for defaults."""
    return ", ".join(
        f"{option} {state.value} is from {_said_by(state)}"
        for option in options
        if (state := _state(SETTINGS[option])).origin != "default"
    )


def _said_by(state: SettingState) -> str:
    if state.origin == "environment":
        return f"{state.variable} in the environment"
    return f"configure at {state.where}"


def _said(setting: Setting) -> _Said:
    configured = _configured.get(setting.option)
    if configured is not None:
        return configured
    value = value_of(setting)
    if value is not None:
        return _Said(value, "environment")
    default = setting.default
    return _Said({ALL_DEVICES: default} if setting.is_by_device else default, "default")


def _value(setting: Setting, said: _Said, device: str) -> object:
    if isinstance(said.value, Mapping):  # it is by device
        return for_device(said.value, device, setting.default)
    return said.value


def _read(option: str, device: str, where: str) -> object:
    setting = SETTINGS[option]
    value = _value(setting, _said(setting), device)
    _readings[option, device] = _Reading(value, where)
    return value


def _state(setting: Setting) -> SettingState:
    said = _said(setting)
    value, late = shown(said.value), _late(setting, said)
    option, variable, *_ = setting
    return SettingState(option, variable, value, said.origin, said.where, late)


def _late(setting: Setting, said: _Said) -> tuple[str, ...]:
    """Return in words the readers of another value than the present one."""
    return tuple(
        f"{device or 'madl'} has {shown(reading.value)} since {reading.where}"
        for (option, device), reading in _readings.copy().items()
        if option == setting.option and reading.value != _value(setting, said, device)
    )


def _check_names(ignore: _Said | None = None) -> None:
    check_names(cast("tuple[str, ...]", (ignore or _said(SETTINGS["ignore"])).value))


def _check_devices(kinds: Callable[[], Iterable[str]]) -> None:
    for option in DEFAULT_POOL_OPTIONS:
        setting = SETTINGS[option]
        said = _said(setting)
        named = {kind_of(device) for device in cast("Mapping[str, object]", said.value)}
        for kind in named - {ALL_DEVICES}:
            known = tuple(kinds())
            if not any(kind == one or kind.startswith(f"{one}_") for one in known):
                raise ConfigurationError(
                    setting.variable,
                    f"{option} names devices of kind {kind!r}, which nothing opens; "
                    f"it is from {_said_by(_state(setting))}",
                    suggestion(kind, known) or ", ".join(known),
                )


def _here() -> str:
    frame = stacks.caller()
    if frame is None:  # the program called from C
        return "an unknown line"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
