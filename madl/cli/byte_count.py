"""The type of options that are byte counts."""

from typing import Any

import click

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
