"""The emulated driver: how it is built, and what a test may tell it."""

import ctypes
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent / "emulated"
FLAGS = ("-O1", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Werror")

# Of the driver's interface.
OUT_OF_MEMORY, NOT_INITIALIZED, DEINITIALIZED = 2, 3, 4
INVALID_VALUE, ILLEGAL_ADDRESS, LAUNCH_FAILED = 1, 700, 719


def build(folder: Path) -> Path:
    """Compile the driver into a folder, for LD_LIBRARY_PATH to name."""
    library = folder / "libcuda.so.1"
    soname = "-Wl,-soname,libcuda.so.1"
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    command = ["gcc", *FLAGS, soname, "-o", str(library), *sources, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


class Emulator:
    """The driver of this process, which has to be the emulated one."""

    LEFT = ("allocations", "handles", "mappings", "reservations", "host_blocks")
    """What a backend that is done with has none of."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        for name in ("calls", "count", "misuses", "pageable_nbytes"):
            getattr(self._library, f"emulated_{name}").restype = ctypes.c_longlong
        for name in ("failed", "misuse"):
            getattr(self._library, f"emulated_{name}").restype = ctypes.c_char_p

    def set(self, **settings: int) -> None:
        """Change what the emulated machine is like."""
        for name, value in settings.items():
            self._library.emulated_set(name.encode(), ctypes.c_longlong(value))

    def count(self, name: str) -> int:
        """Return how many of something there are now."""
        return int(self._library.emulated_count(name.encode()))

    def left(self) -> dict[str, int]:
        """Return all that was taken from the driver and not given back."""
        return {name: self.count(name) for name in self.LEFT}

    def calls(self) -> int:
        """Return how many calls there have been."""
        return int(self._library.emulated_calls())

    def pageable_nbytes(self) -> int:
        """Return the bytes copied in streams from and to memory that is not pinned."""
        return int(self._library.emulated_pageable_nbytes())

    def fail(
        self, number: int, status: int, *, after: bool = False, lasts: bool = False
    ) -> None:
        """Let the call of a number fail, counted from the next.

        Args:
            number: Of the call.
            status: What it answers.
            after: Whether it takes effect all the same.
            lasts: Whether all later calls fail too.
        """
        self._library.emulated_fail(
            ctypes.c_longlong(number), status, int(after), int(lasts)
        )

    def fail_next(self, function: str, status: int) -> None:
        """Let the next call of a function fail, by its full name."""
        self._library.emulated_fail_next(function.encode(), status)

    def recover(self) -> None:
        """Let no call fail any more."""
        self.fail(0, 0)

    def failed(self) -> str:
        """Return the call that was made to fail, or nothing."""
        return str(self._library.emulated_failed().decode())

    def misuses(self) -> list[str]:
        """Return the last misuse, if there was any."""
        count = self._library.emulated_misuses()
        return [self._library.emulated_misuse().decode()] if count else []

    def forget_misuses(self) -> None:
        """Let those that a test wanted pass."""
        self._library.emulated_forget_misuses()

    def run(self) -> None:
        """Do all the work that is queued."""
        self._library.emulated_run()

    def hold(self, *, is_held: bool) -> None:
        """Let every call of the driver wait, or go on."""
        self._library.emulated_hold(int(is_held))

    def take_handles(self) -> None:
        """Take back the handles that a failed release has left."""
        self._library.emulated_take_handles()

    def mend(self) -> None:
        """Make contexts usable again that an illegal access has broken."""
        self._library.emulated_mend()

    def leave(self) -> None:
        """Have no context current in this thread."""
        self._library.emulated_leave()

    def shut_down(self, *, is_down: bool) -> None:
        """Answer every call as a driver does whose process is about to exit."""
        self._library.emulated_shut_down(int(is_down))

    def is_usable(self, address: int, nbytes: int) -> bool:
        """Return whether the device can use a range of paged addresses."""
        return bool(
            self._library.emulated_is_usable(
                ctypes.c_ulonglong(address), ctypes.c_size_t(nbytes)
            )
        )


if __name__ == "__main__":
    build(Path(sys.argv[1]))
