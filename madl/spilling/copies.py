"""The content of a memory, kept in host memory or in a file."""

import os
import tempfile
from collections.abc import Iterator
from typing import Protocol

from madl.hotpath import Memory

STAGE_NBYTES = 8 << 20
"""What goes to a file, or comes from one, passes through so much host memory."""


class Copy(Protocol):
    """The content of a memory, elsewhere."""

    def restore(self, memory: Memory) -> None:
        """Write the content to a memory of the same size."""

    def close(self) -> None:
        """Forget the content."""


class HostCopy:
    """Content in host memory, outside of any pool."""

    def __init__(self, memory: Memory) -> None:
        self._content = memory.tobytes()

    def restore(self, memory: Memory) -> None:
        """As ``Copy``."""
        memory.copy_from(self._content)

    def close(self) -> None:
        """As ``Copy``."""
        self._content = b""


class FileCopy:
    """Content in a file without a name, which goes when it is closed.

    Nobody else can open it, and nothing is left of it when the process is killed.
    """

    def __init__(self, memory: Memory, directory: str | None) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  # until close()
        try:
            # No variable has the slice: an error's traceback would keep it.
            for piece in _pieces(memory):
                self._file.write(memory[piece].tobytes())
            self._file.flush()
        except BaseException:
            self.close()
            raise

    def restore(self, memory: Memory) -> None:
        """As ``Copy``."""
        for piece in _pieces(memory):
            content = self._read(piece.start, piece.stop - piece.start)
            memory[piece].copy_from(content)

    def _read(self, position: int, nbytes: int) -> bytes:
        if hasattr(os, "pread"):  # a forked child shares the file's own position
            content = os.pread(self._file.fileno(), nbytes, position)
        else:
            self._file.seek(position)
            content = self._file.read(nbytes)
        if len(content) < nbytes:
            raise OSError(
                f"a spilled file ends at byte {position + len(content)}, before "
                f"{position + nbytes}"
            )
        return content

    def close(self) -> None:
        """As ``Copy``."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


def _pieces(memory: Memory) -> Iterator[slice]:
    for start in range(0, memory.nbytes, STAGE_NBYTES):
        yield slice(start, min(start + STAGE_NBYTES, memory.nbytes))
