"""Fields of untrusted dicts, each checked for type and range as it is read."""

from collections.abc import Iterator
from typing import NoReturn

from madl.diagnostics.traces.trace import NBYTES_LIMIT, STREAM_LIMIT
from madl.errors import FileFormatError

_WORD_LIMIT = 1 << 64
"""Addresses and handles are below it; those of Intel's GPUs use all 64 bits."""
_SHOWN_LETTERS = 40


class Fields:
    """A dict out of a file, and where in the file it is."""

    def __init__(self, value: object, path: str, where: str) -> None:
        self.path = path
        self.where = where
        if not isinstance(value, dict):
            self.refuse("", f"must be a dict, got {shown(value)}")
        self.values = value

    def has(self, key: str) -> bool:
        """Return whether there is such a field, and it is not None."""
        return self.values.get(key) is not None

    def address(self, key: str) -> int:
        """Return an address."""
        return self.integer(key, 0, _WORD_LIMIT)

    def nbytes(self, key: str) -> int:
        """Return a byte count."""
        return self.integer(key, 0, NBYTES_LIMIT)

    def stream(self) -> int:
        """Return the stream, a number with a sign; 0 where it is not said."""
        if not self.has("stream"):
            return 0
        number = self.integer("stream", 1 - STREAM_LIMIT, _WORD_LIMIT)
        if number < STREAM_LIMIT:
            return number
        return max(number - _WORD_LIMIT, 1 - STREAM_LIMIT)

    def device(self) -> int:
        """Return the number of the device; 0 where it is not said."""
        return self.integer("device", 0, 1 << 16) if self.has("device") else 0

    def integer(self, key: str, least: int, limit: int) -> int:
        """Return a whole number from ``least`` to below ``limit``."""
        value = self.values.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(key, f"must be an integer, got {shown(value)}")
        if not least <= value < limit:
            self.refuse(key, f"must lie in {least}..{limit - 1}, got {shown(value)}")
        return value

    def part(self, key: str) -> float:
        """Return a part of a whole: a number between 0 and 1."""
        value = self.values.get(key)
        if not isinstance(value, float) or not 0 < value < 1:  # nan neither
            self.refuse(key, f"must lie between 0 and 1, got {shown(value)}")
        return value

    def text(self, key: str) -> str:
        """Return a text; nothing where it is not said."""
        value = self.values.get(key, "")
        if not isinstance(value, str):
            self.refuse(key, f"must be text, got {shown(value)}")
        return value

    def values_of(self, key: str) -> list[object]:
        """Return a list."""
        value = self.values.get(key)
        if not isinstance(value, list):
            self.refuse(key, f"must be a list, got {shown(value)}")
        return value

    def dicts(self, key: str) -> Iterator["Fields"]:
        """Yield the dicts in a list."""
        for number, one in enumerate(self.values_of(key)):
            yield Fields(one, self.path, f"{self.where}{key}[{number}].")

    def refuse(self, key: str, reason: str) -> NoReturn:
        """Raise a FileFormatError that names the field."""
        where = f"{self.where}{key}".rstrip(".")
        raise FileFormatError(self.path, 0, f"{where or 'the snapshot'} {reason}")


def shown(value: object) -> str:
    """Return a value, fit for an error; a container by its kind alone."""
    if value is None or isinstance(value, list | dict | tuple):
        return "nothing" if value is None else f"a {type(value).__name__}"
    text = repr(value)
    if len(text) > _SHOWN_LETTERS:
        return f"{text[:_SHOWN_LETTERS]}..."
    return text
