"""Help pages of click: commands in sections, and examples."""

from collections.abc import Mapping, Sequence
from typing import Any

import click


class Command(click.Command):
    """A command whose help ends with examples.

    Args:
        examples: Lines of a shell.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  # as click.Command
        examples: Sequence[str],
        **kwargs: Any,  # noqa: ANN401  # as click.Command
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples below the options."""
        with formatter.section("Examples"):
            for line in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Page(Command, click.Group):
    """Commands in sections, and examples below.

    Args:
        sections: Titles, and the commands below each.
        closing: A last paragraph.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  # as Command
        sections: Mapping[str, Sequence[click.Command]],
        closing: str,
        **kwargs: Any,  # noqa: ANN401  # as Command
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self.closing = closing
        for commands in sections.values():
            for command in commands:
                self.add_command(command)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write each section."""
        widest = max(map(len, self.commands))
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (f"{command.name:{widest}}", command.get_short_help_str(80))
                        for command in commands
                    ]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples and the last paragraph."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(self.closing)
