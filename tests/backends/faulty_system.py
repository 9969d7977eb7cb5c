"""System calls for host memory that fail as a test wants, by their own conventions.

A call that fails may have taken effect: ``mprotect`` changes the first of several
mappings before another one fails, and a Ctrl-C is noticed when the call is over.
"""

import ctypes
import errno
import functools
import mmap
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from madl.backends.host.posix_calls import FAILED
from madl.testing import Failure, Fault
from tests.tally import tally

PARTLY_DONE = ("mprotect", "madvise")
"""What kernels may have done, in part or in whole, when they say that it failed."""


class Call(NamedTuple):
    """Where a system call is looked up."""

    holder: Any
    attribute: str
    name: str


class SystemFaults:
    """The calls of POSIX systems that manage memory, until ``restore``."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self.mapped_nbytes = 0
        self.struck: list[str] = []
        self._fault: Fault | None = None
        self._count = 0
        self._real = [(call, getattr(*call[:2])) for call in calls]
        for call, real in self._real:
            faulty = functools.partial(self._call, call.name, real)
            setattr(call.holder, call.attribute, faulty)

    def restore(self) -> None:
        """Put the system's own calls back."""
        for call, real in self._real:
            setattr(call.holder, call.attribute, real)

    def arm(self, fault: Fault) -> None:
        """Let calls fail, counted from the next one on."""
        self._fault, self._count = fault, 0
        self.struck = []

    def disarm(self) -> None:
        """Let no call fail any more."""
        self._fault = None

    def left(self) -> object:
        """Return the bytes of address space that were mapped and not unmapped.

        But for the OS pages that something was tried on: one for each fault.
        """
        left, self.mapped_nbytes = self.mapped_nbytes, 0
        return left > len(self.struck) * mmap.PAGESIZE

    def _call(self, name: str, real: Callable[..., int], *arguments: Any) -> int:  # noqa: ANN401  # of any call
        self._count += 1
        fault = self._fault
        if fault is None or not fault.strikes(self._count):
            return self._do(name, real, *arguments)
        self.struck.append(name)
        tally.faults += 1
        if fault.failure is Failure.INTERRUPTED:
            # What is reserved and not said is lost, and what is unmapped in vain too:
            # nobody but the kernel knows of it.
            is_taking = name == "mmap" and arguments[0] == 0
            if name == "munmap" or (fault.has_effect and not is_taking):
                self._do(name, real, *arguments)
            raise KeyboardInterrupt
        if fault.has_effect and name in PARTLY_DONE:
            self._do(name, real, *arguments)
        is_refused = fault.failure is Failure.REFUSED
        ctypes.set_errno(errno.ENOMEM if is_refused else errno.EINVAL)
        return FAILED if name in ("mmap", "mremap") else -1

    def _do(self, name: str, real: Callable[..., int], *arguments: Any) -> int:  # noqa: ANN401  # of any call
        answer = real(*arguments)
        if name == "mmap" and arguments[0] == 0 and answer != FAILED:
            self.mapped_nbytes += arguments[1]
        if name == "munmap" and answer == 0:
            self.mapped_nbytes -= arguments[1]
        return answer
