"""The exceptions of madl: what failed, the numbers, what to try.

Each is a ``MadlError`` and the built-in that callers already catch. The fields go to
``args`` in order and the text is made in ``__str__``: pickle replays ``args``.
"""

from madl.errors.damage import Damage
from madl.errors.report import NativeFailure as NativeFailure
from madl.errors.report import OutOfMemoryReport as OutOfMemoryReport
from madl.errors.text import describe
from madl.sizes import format_nbytes
from madl.stacks import Stack, told


class MadlError(Exception):
    """Base of all errors of madl."""


class OutOfMemoryError(MemoryError, MadlError):  # first: it has a __new__ of its own
    """No free block is large enough and no more memory may or can be committed.

    It is a ``MemoryError`` too, so code that already handles running out of memory
    keeps working. Nothing has been taken, and the pool is usable.
    """

    def __init__(self, report: OutOfMemoryReport) -> None:
        super().__init__(report)
        self.report = report

    @property
    def device(self) -> str:
        """The device that ran out, as in ``"cuda:0"``."""
        return self.report.device

    @property
    def requested(self) -> int:
        """Bytes asked for."""
        return self.report.requested_nbytes

    @property
    def free(self) -> int:
        """Bytes committed and free."""
        return self.report.free_nbytes

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block."""
        return self.report.largest_free_nbytes

    @property
    def limit(self) -> int | None:
        """Bytes that may be committed; ``None`` without a limit."""
        return self.report.limit_nbytes

    def __str__(self) -> str:
        return describe(self.report)


class FreedMemoryError(MadlError, ValueError):
    """A ``Memory`` was used after ``free()``."""

    def __init__(self, device: str, nbytes: int, use: str) -> None:
        super().__init__(device, nbytes, use)
        self.device, self.nbytes, self.use = device, nbytes, use

    def __str__(self) -> str:
        return (
            f"{self.device}: {self.use} on memory of {format_nbytes(self.nbytes)} "
            "that was freed. Try: keep the Memory until its last use, "
            "or copy what is needed before free()"
        )


class UnknownBlockError(MadlError, ValueError):
    """A free named a range that no live block covers."""

    def __init__(self, offset: int, nbytes: int) -> None:
        super().__init__(offset, nbytes)
        self.offset, self.nbytes = offset, nbytes

    def __str__(self) -> str:
        return (
            f"no live block of {self.nbytes} bytes starts at offset {self.offset}. "
            "Try: free each block once, with the size it was given"
        )


class NotContiguousError(MadlError, ValueError):
    """A view cannot be made of a layout with gaps or a foreign order."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        super().__init__(shape, strides)
        self.shape, self.strides = shape, strides

    def __str__(self) -> str:
        return (
            f"shape {self.shape} with strides {self.strides} is not C-contiguous. "
            "Try: numpy.ascontiguousarray on it first"
        )


class CorruptedPoolError(MadlError, AssertionError):
    """``check()`` found a broken invariant: a bug in madl or a wild write."""

    def __init__(self, what: str, found: object, expected: object) -> None:
        super().__init__(what, found, expected)
        self.what, self.found, self.expected = what, found, expected

    def __str__(self) -> str:
        return (
            f"{self.what}: found {self.found!r}, expected {self.expected!r}. "
            "Try: report it with the steps before; it is a bug in madl, "
            "or something wrote outside its memory"
        )


class MemoryCorruptionError(MadlError):
    """Debug mode found a write outside a block, or into one that was freed.

    The pool is usable. What was written over has been put right, so that each damage
    is told once.
    """

    def __init__(self, damages: tuple[Damage, ...]) -> None:
        super().__init__(damages)
        self.damages = damages

    def __str__(self) -> str:
        advice = (
            "Try: look at what has used these blocks since, or the ones beside them; "
            "pool.check() in between narrows down when it was written"
        )
        return "\n".join([*map(str, self.damages), advice])


class LeakError(MadlError):
    """Blocks are live that should have been freed."""

    def __init__(
        self,
        device: str,
        leaked: tuple[tuple[str, tuple[int, int]], ...],
        traces: tuple[tuple[Stack, tuple[int, int]], ...] = (),
    ) -> None:
        super().__init__(device, leaked, traces)
        self.device, self.leaked, self.traces = device, leaked, traces

    def __str__(self) -> str:
        listed = ", ".join(
            f"{tag}: {format_nbytes(nbytes)} in {count}"
            for tag, (nbytes, count) in self.leaked
        )
        what = f"{self.device}: blocks that were not freed, by tag: {listed}"
        if not self.traces:
            return (
                f"{what}. Try: free each Memory, or leak_check(depth=4) to see where "
                "they come from"
            )
        lines = [what]
        for stack, (nbytes, count) in self.traces:
            lines.append(f"  {format_nbytes(nbytes)} in {count}, allocated at")
            lines += [f"    {text}" for text in told(stack)]
        return "\n".join([*lines, "Try: free each Memory"])


class FileFormatError(MadlError, ValueError):
    """A file is not what it should be. ``line`` is 0 when no line is to blame."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path, self.line, self.reason = path, line, reason

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else self.path
        return f"{where}: {self.reason}"


class ConfigurationError(MadlError, ValueError):
    """A variable of the environment is no setting, or has no meaning as one."""

    def __init__(self, variable: str, reason: str, advice: str) -> None:
        super().__init__(variable, reason, advice)
        self.variable, self.reason, self.advice = variable, reason, advice

    def __str__(self) -> str:
        return f"{self.reason}. Try: {self.advice}"


class BackendError(MadlError):
    """Base of errors that a device or its backend caused."""


class BackendNotFoundError(BackendError, LookupError):
    """No backend opens the device."""

    def __init__(self, device: str, installed: tuple[str, ...], reason: str) -> None:
        super().__init__(device, installed, reason)
        self.device, self.installed, self.reason = device, installed, reason

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"no backend opens device {self.device!r}{why}; "
            f"kinds that madl knows: {', '.join(self.installed)}. "
            "Try: `madl info`, or install the extra or plugin for that device"
        )


class BackendCallError(BackendError, RuntimeError):
    """A call to the device's API failed for a reason other than memory."""

    def __init__(self, device: str, action: str, native: NativeFailure) -> None:
        super().__init__(device, action, native)
        self.device, self.action, self.native = device, action, native

    def __str__(self) -> str:
        return f"{self.device}: cannot {self.action}: {self.native}"


class AttachError(BackendError, RuntimeError):
    """Memory of another process cannot be attached."""

    def __init__(self, device: str, nbytes: int, reason: str) -> None:
        super().__init__(device, nbytes, reason)
        self.device, self.nbytes, self.reason = device, nbytes, reason

    def __str__(self) -> str:
        return (
            f"{self.device}: cannot attach {format_nbytes(self.nbytes)}: {self.reason}."
            " Try: send the token to each process anew, and end the sender later"
        )


class MissingCapabilityError(BackendError, NotImplementedError):
    """The device, or this build of madl, cannot do what an option asks for."""

    def __init__(self, device: str, capability: str, alternative: str) -> None:
        super().__init__(device, capability, alternative)
        self.device, self.capability, self.alternative = device, capability, alternative

    def __str__(self) -> str:
        return f"{self.device} has no {self.capability}. Try: {self.alternative}"


class ForkError(BackendError):
    """A device was used in a forked child; its driver state belongs to the parent."""

    def __init__(self, device: str, parent_pid: int) -> None:
        super().__init__(device, parent_pid)
        self.device, self.parent_pid = device, parent_pid

    def __str__(self) -> str:
        return (
            f"{self.device} was opened by process {self.parent_pid} and cannot be "
            "used after fork. Try: multiprocessing with the 'spawn' start method, "
            "or fork before any device is opened"
        )
