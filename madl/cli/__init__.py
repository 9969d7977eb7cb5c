"""The command ``madl``: exit status 0 when well, 1 on a madl error, 2 on misuse."""

import os
import sys

import click

from madl.cli.bench import bench
from madl.cli.completion import completion
from madl.cli.diff import diff
from madl.cli.export import export
from madl.cli.info import info
from madl.cli.pages import Page
from madl.cli.replay import replay
from madl.cli.report import report
from madl.cli.view import view
from madl.cli.whatif import whatif
from madl.diagnostics.traces.lines import printable_lines
from madl.errors import MadlError


@click.group(
    cls=Page,
    context_settings={"help_option_names": ["-h", "--help"]},
    sections={
        "See where memory goes": (report, view, diff),
        "Learn what would help": (whatif, replay, bench),
        "Installation and files": (info, export, completion),
    },
    examples=[
        "madl report --example gpt2-train          # needs nothing but madl",
        "madl view run.trace.gz -o run.html        # what a program recorded",
        "madl whatif run.pickle                    # why PyTorch ran out",
        "madl COMMAND --help                       # all options, more examples",
    ],
    closing="Exit status: 0 when all is well; 1 when a file, a device or the memory is "
    "not; 2 when the command itself is not. With --json a command prints one object, "
    "and nothing on stderr unless it fails.",
)
@click.version_option(package_name="madl")
def commands() -> None:
    """Allocate memory for deep learning: see what a pool does with it.

    A program records itself with `with madl.record("run.trace.gz"):`. Most commands
    read such a FILE, or a snapshot, and need neither the program nor its device.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a MadlError becomes a text on stderr and status 1.

    So does a full disk below stdout; that its reader is gone is no matter to click.
    """
    try:
        commands.main(args=arguments, prog_name="madl")
    except MadlError as error:
        click.echo(printable_lines(f"madl: {error}"), err=True)
        for note in getattr(error, "__notes__", ()):
            click.echo(printable_lines(note), err=True)
        sys.exit(1)
    except OSError as error:
        if error.filename is not None:  # of a file, and stdout has no name
            raise
        # Let the interpreter's last flush of stdout succeed: one complaint is enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reason = f"the output cannot be written: {error.strerror}"
        click.echo(f"madl: {reason}", err=True)
        sys.exit(1)
