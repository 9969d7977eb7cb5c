"""``madl info``: what madl runs on here, and what it can do."""

import json
import platform
from importlib.metadata import PackageNotFoundError
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import madl
from madl import hotpath
from madl.backends import registry
from madl.errors import BackendNotFoundError
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
    for kind, device in facts["devices"].items():
        table = Table(title=f"device kind {kind}", show_header=False)
        for name, value in device.items():
            table.add_row(name, escape(str(value)))
        console.print(table)


def _collect() -> dict[str, Any]:
    return {
        "version": _version(),
        "core": "compiled" if hotpath.IS_COMPILED else "pure Python",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(),
        "devices": {kind: _describe(kind) for kind in registry.kinds()},
    }


def _version() -> str:
    try:
        return str(madl.__version__)
    except PackageNotFoundError:  # run from a checkout
        return "not installed"


def _describe(kind: str) -> dict[str, str]:
    try:
        backend = registry.open_device(kind)
    except BackendNotFoundError as error:
        return {"not available": error.reason}
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
