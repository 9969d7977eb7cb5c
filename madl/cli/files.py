"""The files of a command: what it reads and writes, its notes and its progress."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from madl.diagnostics.traces.lines import printable
from madl.diagnostics.traces.reader import example_names, example_path
from madl.errors import FileFormatError


def file_or_example(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command take a FILE, or the name of an example instead.

    It is called with ``file``, the path of either.
    """

    @click.argument("file", required=False, type=click.Path())
    @click.option(
        "--example",
        type=click.Choice(example_names()),
        help="Take a trace that ships with madl, instead of a FILE.",
    )
    @wraps(function)
    def command(
        file: str | None,
        example: str | None,
        **options: Any,  # noqa: ANN401  # whatever else the command takes
    ) -> None:
        if (file is None) == (example is None):
            raise click.UsageError("name either a FILE or an --example")
        path = file if example is None else str(example_path(example))
        function(file=path, **options)

    return command


def refuse_the_input(target: str, source: str) -> None:
    """Refuse to replace what a command is about to read, by whatever name.

    Raises:
        UsageError: Both are one file.
    """
    try:
        is_one = os.path.samefile(source, target)
    except OSError:  # one is not there; what reads or writes it says so, if it matters
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


def print_notes(notes: Iterable[str]) -> None:
    """Print notes, such as that a recording has not ended, where no result goes."""
    for note in notes:
        click.echo(printable(f"note: {note}"), err=True)


class EventProgress:
    """Counts events on a terminal; hidden anywhere else."""

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
