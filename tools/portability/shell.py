"""Commands, Debian's packages, and a cache of what was downloaded."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.portability.outcome import FailedError, SkippedError

CHECKOUT = Path(__file__).parents[2]


def cache() -> Path:
    """Return the folder that downloads stay in: TEST_MADL_PORTABILITY_CACHE."""
    chosen = os.environ.get("TEST_MADL_PORTABILITY_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(chosen) if chosen else Path(home) / "madl-portability"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Give an empty folder that no other run uses, and remove it in the end."""
    with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=cache()) as folder:
        yield Path(folder)


@contextmanager
def making(target: Path) -> Iterator[Path]:
    """Give an empty folder that takes the place of a target once it is complete.

    Two runs may make the same at once: what is there first stays.
    """
    with scratch(target.name) as folder:
        made = folder / target.name
        made.mkdir()
        yield made
        try:
            made.rename(target)
        except OSError:
            if not target.exists():
                raise


def run(
    command: Sequence[str | Path],
    *,
    timeout_s: int = 300,
    env: Mapping[str, str] | None = None,
    folder: Path = CHECKOUT,
) -> str:
    """Return what a command prints.

    Raises:
        FailedError: It did not end well, or not in time.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**os.environ, **(env or {})},
            cwd=folder,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"no end after {timeout_s} s: {command[0]}") from error
    if done.returncode != 0:
        tail = done.stdout.strip()[-3000:]
        raise FailedError(f"status {done.returncode} of {command[0]}:\n{tail}")
    return done.stdout


def need(**packages: str) -> None:
    """Have programs, each from a package of Debian, installed when it is missing."""
    missing = {
        package
        for program, package in packages.items()
        if shutil.which(program.replace("_", "-")) is None
    }
    if not missing:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        wanted = ", ".join(sorted(missing))
        raise SkippedError(f"needs {wanted}, and root to install it")
    lock = ("-o", "DPkg::Lock::Timeout=300")
    try:
        run(["apt-get", *lock, "update", "-qq"])
        how = ("install", "-y", "-qq", "--no-install-recommends")
        run(["apt-get", *lock, *how, *sorted(missing)], timeout_s=600)
    except FailedError as error:
        raise SkippedError(f"cannot install {', '.join(sorted(missing))}") from error


def fetch(what: str, command: Sequence[str | Path], folder: Path) -> None:
    """Run a command that downloads; a target without what it needs is skipped."""
    try:
        run(command, timeout_s=600, folder=folder)
    except FailedError as error:
        last = str(error).strip().rpartition("\n")[2]
        raise SkippedError(f"cannot download {what}: {last[:200]}") from error
