"""The file that a command reads: one that is named, or an example."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from madl.diagnostics.traces.reader import example_names, example_path


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
