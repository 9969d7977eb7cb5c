"""Parameters that commands share: FILE or an example, byte counts, devices, --json."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from click.shell_completion import CompletionItem

from madl.backends import registry
from madl.diagnostics.traces.reader import example_names, example_path
from madl.sizes import parse_nbytes

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object."
)


class ByteCount(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """An option that is a byte count, such as ``64MiB``."""

    name = "bytes"

    def convert(
        self,
        value: Any,  # noqa: ANN401  # click's signature
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Return the bytes; a malformed text is a usage error."""
        try:
            return parse_nbytes(value, name=param.name if param else "value")
        except (ValueError, OverflowError) as error:
            self.fail(str(error), param, ctx)


class DeviceName(click.ParamType):  # type: ignore[type-arg]  # as ByteCount
    """An option that is a device, such as ``opencl:0``.

    Whether it is there shows when it is opened.
    """

    name = "device"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the kinds of devices that begin so; none is opened for it."""
        return [
            CompletionItem(kind)
            for kind in registry.kinds()
            if kind.startswith(incomplete)
        ]


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
        **options: Any,  # noqa: ANN401  # those of the command
    ) -> None:
        if (file is None) == (example is None):
            raise click.UsageError("name either a FILE or an --example")
        path = file if example is None else str(example_path(example))
        function(file=path, **options)

    return command
