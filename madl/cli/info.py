"""``madl info``: what madl runs on here, and what it can do."""

import json
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import madl
from madl import hotpath
from madl.backends import registry
from madl.sizes import format_nbytes


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(as_json: bool) -> None:
    """Show this installation, its devices, and why a device is missing."""
    facts = _collect()
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    console = Console()
    table = Table(title="madl", show_header=False)
    for name in ("version", "core", "python", "system"):
        table.add_row(name, str(facts[name]))
    console.print(table)
    for device, described in facts["devices"].items():
        table = Table(title=f"device {device}", show_header=False)
        for name, value in described.items():
            table.add_row(name, escape(str(value)))
        console.print(table)
    if facts["plugins"]:
        table = Table(title="plugins", show_header=False)
        for plugin in facts["plugins"]:
            came_of_it = (
                plugin["failure"] or ", ".join(plugin["devices"]) or "no device"
            )
            source = f"{plugin['distribution']} ({plugin['module']})"
            table.add_row(plugin["kind"], escape(f"{source}: {came_of_it}"))
        console.print(table)


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
    }


def _version() -> str:
    try:
        return str(madl.__version__)
    except PackageNotFoundError:  # run from a checkout
        return "not installed"


def _describe_kind(kind: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the devices of a kind, or why there is none under the kind's name."""
    for device in registry.devices_of(kind) or (kind,):
        try:
            yield device, _describe(device)
        except Exception as error:  # what is broken is shown, whatever it raises
            yield device, {"not available": registry.in_words(error)}


def _describe(device: str) -> dict[str, str]:
    backend = registry.open_device(device)
    memory = backend.memory_info()
    facts = {
        "device": backend.device,
        "capabilities": ", ".join(
            str(one.name) for one in madl.Capability if one in backend.capabilities
        ),
        "memory": format_nbytes(memory.total_nbytes),
        "available": format_nbytes(memory.available_nbytes),
    }
    describe = getattr(backend, "describe", None)
    if describe is not None:
        facts.update(describe())
    return facts
