"""The file that a command writes."""

from collections.abc import Iterator
from contextlib import contextmanager

from madl.errors import FileFormatError


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Let a file that cannot be written end the command as one that cannot be read."""
    try:
        yield
    except OSError as error:
        reason = f"it cannot be written: {error.strerror}"
        raise FileFormatError(path, 0, reason) from None
