"""Output of commands: a file, JSON, notes, cells of tables, and progress."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from madl.diagnostics.traces.lines import printable
from madl.errors import FileFormatError


def refuse_the_input(target: str, source: str) -> None:
    """Refuse to replace what a command is about to read, by any name of it.

    Raises:
        UsageError: Both are one file.
    """
    try:
        is_one = os.path.samefile(source, target)
    except OSError:  # one is not there; to open it raises the error that matters
        return
    if is_one:
        text = f"the output is the input: {target}. Try: another name"
        raise click.UsageError(printable(text))


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Let a file that cannot be written end the command as one that cannot be read.

    A pipe whose reader has seen enough is no error, as with stdout.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = f"it cannot be written: {error.strerror}"
        raise FileFormatError(path, 0, reason) from None


def print_json(figures: Mapping[str, object]) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(figures, indent=1))


def print_notes(notes: Iterable[str]) -> None:
    """Print notes, such as that a recording has not ended, where no result goes."""
    for note in notes:
        click.echo(printable(f"note: {note}"), err=True)


def cell(text: str) -> Text:
    """Return a text of a file fit for a table: no control codes, no markup."""
    return Text(printable(text))


def figures_table(title: str | Text, rows: Mapping[str, str | Text]) -> Table:
    """Return a table of names and figures."""
    table = Table(title=title, show_header=False)
    table.add_column()
    table.add_column(justify="right", overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


@contextmanager
def event_progress(
    what: str, of: int | None = None, *, hidden: bool
) -> Iterator[Callable[..., None]]:
    """Show a bar on stderr, unless that is no terminal; yield what moves it on.

    It is called with events done since the last call, and of all if that is known now.
    """
    console = Console(stderr=True)
    with Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=hidden or not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=of)
        yield lambda events, of=None: bar.update(task, total=of, advance=events)
