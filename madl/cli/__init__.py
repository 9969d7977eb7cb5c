"""The command ``madl``: exit status 0 when well, 1 on a madl error, 2 on misuse."""

import sys

import click

from madl.cli.bench import bench
from madl.cli.diff import diff
from madl.cli.export import export
from madl.cli.info import info
from madl.cli.replay import replay
from madl.cli.report import report
from madl.cli.view import view
from madl.cli.whatif import whatif
from madl.diagnostics.names import printable_lines
from madl.errors import MadlError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="madl")
def commands() -> None:
    """Allocate memory for deep learning: see what a pool does with it."""


commands.add_command(bench)
commands.add_command(diff)
commands.add_command(export)
commands.add_command(info)
commands.add_command(replay)
commands.add_command(report)
commands.add_command(view)
commands.add_command(whatif)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a MadlError becomes a text on stderr and status 1."""
    try:
        commands.main(args=arguments, prog_name="madl")
    except MadlError as error:
        click.echo(printable_lines(f"madl: {error}"), err=True)
        for note in getattr(error, "__notes__", ()):
            click.echo(printable_lines(note), err=True)
        sys.exit(1)
