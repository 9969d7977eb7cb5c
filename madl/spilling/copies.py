"""Spilled content, in host memory or in an unnamed temporary file.

Where its pool wipes what is freed (``zero="free"``), the copy is wiped too when it is
closed, and so is each buffer that the content passes through.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator

from madl.hotpath import Memory

STAGE_NBYTES = 8 << 20
"""What goes to a file, or comes from one, passes through so much host memory."""


class HostCopy:
    """Content in host memory, outside of any pool."""

    def __init__(self, memory: Memory) -> None:
        self._is_wiped = memory.pool.zero == "free"
        self._content = bytearray(memory.nbytes)
        memory.copy_to(self._content)

    def restore(self, memory: Memory) -> None:
        """Write the content to a memory of the same size."""
        memory.copy_from(self._content)

    def close(self) -> None:
        """Forget the content. Idempotent."""
        if self._is_wiped:
            _wipe(self._content)
        self._content = bytearray()

    def __del__(self) -> None:
        if hasattr(self, "_content"):
            self.close()


class FileCopy:
    """Content in a file without a name, which is deleted when it is closed.

    No other program can open it. After ``SIGKILL`` it is gone as well, but for what a
    disk keeps of any deleted file.
    """

    def __init__(self, memory: Memory, directory: str | None) -> None:
        self._nbytes = memory.nbytes
        self._is_wiped = memory.pool.zero == "free"
        self._process = os.getpid()
        # Without a buffer: it would keep some of the content.
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  # until close()
        try:
            with self._staging() as stage:
                for start, piece in _pieces(stage, self._nbytes):
                    # No variable for the slice: an error's traceback would pin it.
                    memory[start : start + len(piece)].copy_to(piece)
                    self._write(piece)
        except BaseException:
            self.close()
            raise

    def restore(self, memory: Memory) -> None:
        """Write the content to a memory of the same size."""
        with self._staging() as stage:
            for start, piece in _pieces(stage, self._nbytes):
                self._read(start, piece)
                memory[start : start + len(piece)].copy_from(piece)

    def close(self) -> None:
        """Forget the content. Idempotent."""
        try:
            # A forked child shares the file: only the process that wrote it wipes it.
            if self._is_wiped and self._process == os.getpid():
                self._is_wiped = False
                self._overwrite()
        finally:
            self._file.close()

    @contextlib.contextmanager
    def _staging(self) -> Iterator[bytearray]:
        stage = bytearray(min(STAGE_NBYTES, self._nbytes))
        try:
            yield stage
        finally:
            if self._is_wiped:
                _wipe(stage)

    def _write(self, piece: memoryview) -> None:
        while piece:
            piece = piece[self._file.write(piece) :]

    def _read(self, position: int, piece: memoryview) -> None:
        end = position + len(piece)
        while piece:
            if hasattr(os, "preadv"):  # a forked child shares the file's own position
                read = os.preadv(self._file.fileno(), [piece], position)
            else:
                self._file.seek(position)
                read = self._file.readinto(piece)
            if not read:
                raise OSError(f"a spilled file ends at byte {position}, before {end}")
            position, piece = position + read, piece[read:]

    def _overwrite(self) -> None:
        """Write zeros over the content, on the disk too if it has come that far."""
        self._file.seek(0)
        stage = bytearray(min(STAGE_NBYTES, self._nbytes))
        for _, piece in _pieces(stage, self._nbytes):
            self._write(piece)
        os.fsync(self._file.fileno())

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()


Copy = HostCopy | FileCopy


def _pieces(stage: bytearray, nbytes: int) -> Iterator[tuple[int, memoryview]]:
    """Yield where each piece of a content starts, and the part of the stage for it."""
    view = memoryview(stage)
    for start in range(0, nbytes, STAGE_NBYTES):
        yield start, view[: nbytes - start]


def _wipe(content: bytearray) -> None:
    view = memoryview(content)
    for start in range(0, len(view), STAGE_NBYTES):
        piece = view[start : start + STAGE_NBYTES]
        piece[:] = bytes(len(piece))
