"""Output of commands: a file, JSON, notes, cells of tables, and progress."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
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


class EventProgress:
    """A progress bar on stderr; hidden where that is no terminal."""

    def __init__(
        self, what: str, of: int | None = None, *, hidden: bool = False
    ) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=hidden or not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=of)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def update(self, events: int, of: int | None = None) -> None:
        """Move on by so many events of all there are, if that is known now."""
        self._bar.update(self._task, total=of, advance=events)
