"""``madl info``: the installation, its devices and plugins, and the settings."""

import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError
from typing import Any, cast

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import madl
from madl import SettingState, hotpath
from madl.backends import registry
from madl.backends.protocol import DescribedBackend
from madl.cli.output import print_json
from madl.cli.pages import Command
from madl.cli.parameters import json_option
from madl.sizes import format_nbytes


@click.command(cls=Command, examples=["madl info", "MADL_LIMIT=8GiB madl info --json"])
@json_option
def info(as_json: bool) -> None:
    """Show this installation, settings and devices, and why one is missing.

    Of a setting, it says where its value comes from: the default, a variable of the
    environment, or a line that called madl.configure, as a plugin may.
    """
    facts = _collect()
    if as_json:
        print_json(facts)
        return
    console = Console()
    names = ("version", "core", "python", "system")
    _print(console, "madl", [(name, facts[name]) for name in names])
    for device, described in facts["devices"].items():
        _print(console, f"device {device}", _rows_of_device(described))
    if facts["plugins"]:
        _print(console, "plugins", map(_row_of_plugin, facts["plugins"]))
    _print(console, "settings", map(_row_of_setting, madl.configuration()))


def _print(console: Console, title: str, rows: Iterable[tuple[str, object]]) -> None:
    table = Table(title=title, show_header=False)
    for name, value in rows:
        table.add_row(name, escape(str(value)))
    console.print(table)


def _rows_of_device(described: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in described.items():
        if isinstance(value, int) and name.endswith("_nbytes"):
            yield name.removesuffix("_nbytes"), format_nbytes(value)
        else:
            yield name, value


def _row_of_plugin(plugin: Mapping[str, Any]) -> tuple[str, str]:
    came_of_it = plugin["failure"] or ", ".join(plugin["devices"]) or "no device"
    text = f"{plugin['distribution']} ({plugin['module']}): {came_of_it}"
    return plugin["kind"], text


def _row_of_setting(setting: SettingState) -> tuple[str, str]:
    origin = {
        "environment": f"from {setting.variable}",
        "configure": f"from configure at {setting.where}",
    }.get(setting.origin, "by default")
    late = "".join(f"; too late, {reader}" for reader in setting.late)
    return setting.option, f"{setting.value or 'none'}, {origin}{late}"


def _collect() -> dict[str, Any]:
    return {
        "version": _version(),
        "core": "compiled" if hotpath.IS_COMPILED else "pure Python",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(),
        "devices": {
            device: described
            for kind in registry.kinds()
            for device, described in _describe_kind(kind)
        },
        "plugins": [state._asdict() for state in registry.plugin_states()],
        # last: a plugin may call configure when it is imported
        "settings": [setting._asdict() for setting in madl.configuration()],
    }


def _version() -> str:
    try:
        return str(madl.__version__)
    except PackageNotFoundError:  # run from a checkout
        return "not installed"


def _describe_kind(kind: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the devices of a kind, or why there is none under the kind's name."""
    for device in registry.devices_of(kind) or (kind,):
        try:
            yield device, _describe(device)
        except Exception as error:  # of a plugin or driver, and shown
            yield device, {"not available": registry.in_words(error)}


def _describe(device: str) -> dict[str, object]:
    backend = registry.open_device(device)
    memory = backend.memory_info()
    facts: dict[str, object] = {
        "device": backend.device,
        "capabilities": ", ".join(
            str(one.name) for one in madl.Capability if one in backend.capabilities
        ),
        "memory_nbytes": memory.total_nbytes,
        "available_nbytes": memory.available_nbytes,
    }
    if madl.Capability.DESCRIBE in backend.capabilities:
        facts.update(cast("DescribedBackend", backend).describe())
    return facts
