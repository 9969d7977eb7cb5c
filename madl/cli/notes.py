"""What a file has to say of itself, beside what a command makes of it."""

from collections.abc import Iterable

import click

from madl.diagnostics.traces.lines import printable


def print_notes(notes: Iterable[str]) -> None:
    """Print notes, such as that a recording has not ended, where no result goes."""
    for note in notes:
        click.echo(printable(f"note: {note}"), err=True)
