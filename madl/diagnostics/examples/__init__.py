"""Traces that ship with madl: five training steps of three well-known models.

Each was recorded from a real PyTorch program on a CPU, every tensor in exact order.
"""

from importlib.resources import files
from pathlib import Path

_SUFFIX = ".trace.gz"


def example_names() -> tuple[str, ...]:
    """Return the names of the example traces, in alphabetical order.

    >>> from madl.diagnostics import example_names
    >>> example_names()
    ('gpt2-train', 'resnet50-train', 'vit-train')
    """
    entries = (entry.name for entry in files(__name__).iterdir())
    return tuple(
        sorted(name.removesuffix(_SUFFIX) for name in entries if name.endswith(_SUFFIX))
    )


def example_path(name: str) -> Path:
    """Return where an example trace lies.

    Args:
        name: One of ``example_names()``.

    Raises:
        ValueError: No example has that name.
    """
    names = example_names()
    if name not in names:
        raise ValueError(f"example must be one of {', '.join(names)}, got {name!r}")
    return Path(str(files(__name__) / f"{name}{_SUFFIX}"))
