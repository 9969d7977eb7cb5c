"""The file that a command writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import click

from madl.diagnostics.traces.lines import printable
from madl.errors import FileFormatError


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
