"""A disk without room, as a process sees it."""

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def no_file_larger_than(nbytes: int) -> Iterator[None]:
    """Let every write beyond so many bytes of a file fail with EFBIG."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
