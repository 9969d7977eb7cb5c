"""Files that are whole or not there, whatever ends the writing of them."""

import os
import secrets
import shutil
from pathlib import Path


def part_of(path: Path) -> Path:
    """Return a name beside a file, for what is to replace it when it is complete."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def file_behind(path: str | os.PathLike[str]) -> Path | None:
    """Return the file that a path names, which need not be there yet.

    Links are followed: the file that one names is replaced, not the link.

    Returns:
        ``None`` for what is no file, such as a directory, a pipe or a device.
    """
    given = Path(path)
    target = given.resolve()
    # given: /dev/stdout is there, but where it leads may have no name, as a pipe has
    return None if given.exists() and not target.is_file() else target


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file; one that is there is replaced when all of it is written.

    What is no file, a pipe or ``/dev/stdout``, is written to as it is.

    Raises:
        OSError: It cannot be written. Nothing is left of it, and a file that was there
            is as before; so it is after an interruption.
    """
    target = file_behind(path)
    if target is None:
        Path(path).write_bytes(content)
        return
    part = part_of(target)
    try:
        # unbuffered: to close what was interrupted does not write it once more
        with part.open("xb", buffering=0) as file:
            if target.exists():
                shutil.copymode(target, part)  # others must not read it now either
            left = memoryview(content)
            while left:
                left = left[file.write(left) :]
        part.replace(target)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):  # of the file that was asked for
            error.filename, error.filename2 = os.fspath(path), None
        raise
