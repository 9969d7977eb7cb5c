"""Types of command-line parameters: byte counts and devices."""

from typing import Any

import click
from click.shell_completion import CompletionItem

from madl.backends import registry
from madl.sizes import parse_nbytes


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
