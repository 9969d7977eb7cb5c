"""The type of options that are devices."""

import click
from click.shell_completion import CompletionItem

from madl.backends import registry


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
