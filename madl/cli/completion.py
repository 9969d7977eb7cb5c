"""``madl completion``: completion scripts for bash, zsh and fish."""

import click
from click.shell_completion import get_completion_class

from madl.cli.pages import Command

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_MADL_COMPLETE"
"""What the script sets when it asks; click reads it before any command runs."""


@click.command(
    cls=Command,
    examples=[
        'eval "$(madl completion bash)"            # in ~/.bashrc',
        'eval "$(madl completion zsh)"             # in ~/.zshrc',
        "madl completion fish | source             # in ~/.config/fish/config.fish",
    ],
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete madl's commands.

    It completes commands, options, their choices, files and kinds of devices.
    """
    found = get_completion_class(shell)
    assert found is not None, "click has each of the shells"
    script = found(context.find_root().command, {}, "madl", VARIABLE)
    click.echo(script.source())
