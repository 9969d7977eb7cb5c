"""Raise where a signal handler may: at the n-th moment that Python looks for signals.

It looks when a function begins, when a loop turns, and after each call of a C function.
A trace function raises there, in madl's own frames, as a handler of Ctrl-C would.
"""

import dis
import pathlib
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import madl

FOLDER = str(pathlib.Path(madl.__file__).parent)

_LOOKS_AFTER = {
    dis.opmap[name]
    for name in ("RESUME", "JUMP_BACKWARD", "CALL", "CALL_KW", "CALL_FUNCTION_EX")
    if name in dis.opmap
}


class Interruption(BaseException):
    """What the signal handler raises."""


class _Countdown:
    """Does something once, at the n-th moment."""

    def __init__(self, moments: int, do: Callable[[], object]) -> None:
        self.left = moments
        self._do = do
        self._last: dict[FrameType, int] = {}

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:  # noqa: ANN401  # as sys.settrace has it
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            self.look()  # Python 3.11 shows no opcode before this moment
        elif event == "opcode":
            code = frame.f_code.co_code
            before, at = self._last.get(frame), frame.f_lasti
            self._last[frame] = at
            if before is not None and code[before] in _LOOKS_AFTER:
                self.look()
        elif event == "return":
            self._last.pop(frame, None)
            # A call of a Python function is no call of the interpreter's own.
            self._last.pop(cast("FrameType", frame.f_back), None)
        return self.trace

    def forget(self) -> None:
        """Let go of the frames that it was in."""
        self._last.clear()

    def look(self) -> None:
        self.left -= 1
        if self.left == 0:
            self._do()


def _raise() -> None:
    raise Interruption


def comes_between(
    act: Callable[[], object], moments: int, handler: Callable[[], object]
) -> bool:
    """Call ``act``, and ``handler`` at the given moment of it.

    Return whether it came so far.
    """
    countdown = _Countdown(moments, handler)
    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # as for what is interrupted
    sys.settrace(countdown.trace)
    try:
        act()
    finally:
        sys.settrace(before)
        countdown.forget()
    return countdown.left <= 0


def is_interrupted(
    act: Callable[[], object], moments: int, meanwhile: Callable[[], object]
) -> bool:
    """Call ``act``; raise at the given moment of it. Return whether it came so far.

    ``meanwhile`` is called while the error is handled: its traceback refers to all that
    was in hand. All of it runs in a thread that ends: Python 3.11 loses count of the
    errors that a thread handles when a trace function raises another one.
    """
    countdown = _Countdown(moments, _raise)
    _run(_Traced(countdown, act, meanwhile))
    return countdown.left <= 0


class _Traced(threading.Thread):
    """Runs something until it is interrupted."""

    def __init__(
        self,
        countdown: _Countdown,
        act: Callable[[], object],
        meanwhile: Callable[[], object],
    ) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self._countdown = countdown
        self._act = act
        self._meanwhile = meanwhile

    def run(self) -> None:
        # Python 3.11 calls it once more, after it has dropped its own reference.
        tracer = self._countdown.trace
        sys._getframe().f_trace_opcodes = True  # Python 3.12 looks whether any has it
        sys.settrace(tracer)
        try:
            self._act()
        except Interruption:
            sys.settrace(None)
            self._use()
        except BaseException as error:
            self.error = error
        finally:
            sys.settrace(None)
            self._countdown.forget()

    def _use(self) -> None:
        try:
            self._meanwhile()
        except BaseException as error:
            self.error = error


def _run(thread: _Traced) -> None:
    # pytest's hook keeps what a finalizer swallowed, and so what was to be finalized.
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        thread.start()
        thread.join()
    finally:
        sys.unraisablehook = before
    if thread.error is not None:
        raise thread.error
