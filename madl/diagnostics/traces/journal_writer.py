"""The journal of one recording: a file beside the trace until that is written."""

import os
from pathlib import Path

from madl.diagnostics.traces.journal_format import (
    NUMBER_LIMIT,
    SUFFIX,
    Kind,
    Text,
    context_record,
    record,
    text_records,
)
from madl.diagnostics.traces.stack_text import stack_to_text
from madl.diagnostics.traces.writer import TEXT_LIMIT_NBYTES
from madl.hotpath import Journal
from madl.stacks import Stack


class JournalWriter:
    """Writes records beside ``path``. One thread at a time, but for the pools."""

    def __init__(self, path: Path, headers: dict[str, str]) -> None:
        """Start a journal.

        Raises:
            FileExistsError: There is one already.
            OSError: The file cannot be made. None is left.
        """
        self.path = path.with_name(path.name + SUFFIX)
        try:
            self._file = open(  # noqa: SIM115  # until close()
                self.path, "x+b", buffering=0, opener=_open_privately
            )
        except FileExistsError as error:
            raise FileExistsError(
                error.errno,
                f"a recording to {str(path)!r} is running, or did not end. Try: "
                "`madl replay` of its journal, and then remove that",
                str(self.path),
            ) from None
        except OSError as error:
            text = f"cannot record: {error.strerror}"
            raise type(error)(error.errno, text, str(path)) from None
        self.journal = Journal(self._file.fileno())
        self._tags: dict[str, int] = {}
        self._stacks: dict[Stack, int] = {}
        for key, value in headers.items():
            self.journal.put(text_records(Text.HEADER, 0, f"{key}: {value}"))
        if number := self.journal.error:
            self.close()
            self.remove()
            raise OSError(number, f"cannot record: {os.strerror(number)}", str(path))

    @property
    def error(self) -> OSError | None:
        """What ended the writing."""
        number = self.journal.error
        if not number:
            return None
        return OSError(number, os.strerror(number), str(self.path))

    def allocate(
        self, key: int, nbytes: int, stream: int, tag: str | None, stack: Stack
    ) -> None:
        """Write an allocation."""
        plain = record(nbytes, key, Kind.ALLOCATE)
        if not (stream or tag or stack):
            self.journal.put(plain)
            return
        tag_number = self._tag_number(tag) if tag else 0
        stack_number = self._stack_number(stack) if stack else 0
        self.journal.put(context_record(stream, tag_number, stack_number) + plain)

    def free(self, key: int) -> None:
        """Write a free."""
        self.journal.put(record(0, key, Kind.FREE))

    def mark(self, label: str) -> None:
        """Write a marker."""
        self.journal.put(text_records(Text.MARKER, 0, label))

    def define_tag(self, number: int, tag: str) -> None:
        """Write what a tag is called from now on; after ``close()``, nothing.

        An allocation may come here that has found the recording before it ended.
        """
        journal: Journal | None = vars(self).get("journal")
        if journal is not None:
            journal.put(text_records(Text.TAG, number, _cut(tag)))

    def close(self) -> None:
        """Write no more."""
        del self.journal  # first: a file that is mapped cannot be removed everywhere
        self._file.close()

    def remove(self) -> None:
        """Remove the file, after it was closed."""
        self.path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Close the file, which is that of the process this one was forked from."""
        self.journal.stop_listening()
        self._file.close()

    def _tag_number(self, tag: str) -> int:
        number = self._tags.get(tag)
        if number is None:
            number = self._tags[tag] = len(self._tags) % (NUMBER_LIMIT - 1) + 1
            self.define_tag(number, tag)
        return number

    def _stack_number(self, stack: Stack) -> int:
        number = self._stacks.get(stack)
        if number is None:
            number = self._stacks[stack] = len(self._stacks) % (NUMBER_LIMIT - 1) + 1
            text = stack_to_text(stack, TEXT_LIMIT_NBYTES)
            self.journal.put(text_records(Text.STACK, number, text))
        return number


def _open_privately(path: str, flags: int) -> int:
    """Open a file that nobody else may read: tags and stacks say much of a program."""
    return os.open(path, flags, 0o600)


def _cut(tag: str) -> str:
    """Return as much of a tag as a trace can carry."""
    encoded = tag.encode(errors="replace")
    return encoded[:TEXT_LIMIT_NBYTES].decode(errors="ignore")
