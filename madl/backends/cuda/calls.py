"""CUDA driver calls, through cuda-python: each status that fails raises madl's error.

``cuda.bindings`` is imported when the first device is opened, not before.
"""

import contextlib
import importlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from madl.backends.registry import how_many
from madl.errors import (
    BackendCallError,
    BackendNotFoundError,
    ForkError,
    MadlError,
    NativeFailure,
    OutOfMemoryError,
    OutOfMemoryReport,
)

KINDS = ("cuda", "cuda_managed", "cuda_pinned")

OLDEST_VERSION = 12000
"""CUDA 12.0: cuda-bindings finds its calls in it, and C has its signatures."""

SUCCESS, OUT_OF_MEMORY, NOT_INITIALIZED, DEINITIALIZED = 0, 2, 3, 4
NOT_READY, IMPLICIT, CAPTURED = 600, 906, 907
_NOT_FOUND, _UNKNOWN = 500, 999

_BROKEN = frozenset((214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721))
"""After these, the driver answers every call of the process with the same."""

_IN_A_CHILD = (
    "; after a fork a driver that the parent used cannot be used: start children by "
    "'spawn'"
)
_processes: list[int] = []  # the one that initialized the driver


class CudaCalls:
    """The driver's calls, for one device.

    Raises:
        BackendNotFoundError: The bindings or the driver are missing, or too old, or
            there is no such device.
        ForkError: This is a child of the process that initialized the driver.
    """

    def __init__(self, device: str, index: int) -> None:
        self.device = device
        self.driver: Any = _open_driver(device)
        self._process = os.getpid()
        count = device_count(self)
        if not 0 <= index < count:
            raise _not_found(device, how_many(count, "CUDA device"))

    def status(self, function: str, *arguments: object) -> tuple[int, Any]:
        """Call the driver; return its status and what it gave out.

        Raises:
            ForkError: This is a child of the process that opened the device.
        """
        self.check_process()
        try:
            status, *given = getattr(self.driver, function)(*arguments)
        except RuntimeError as error:  # the driver is older than this call
            raise self._odd(function, _NOT_FOUND, error) from error
        except ValueError as error:  # it is newer than the bindings, and so its status
            raise self._odd(function, _UNKNOWN, error) from error
        return int(status), given[0] if len(given) == 1 else tuple(given)

    def check_process(self) -> None:
        """Raise in a child of the process that opened the device.

        Raises:
            ForkError: This is one.
        """
        if os.getpid() != self._process:
            raise ForkError(self.device, self._process)

    def quietly(self, function: str, *arguments: object) -> int:
        """Call the driver where nothing can be done about a failure; never raise."""
        try:
            return self.status(function, *arguments)[0]
        except MadlError:
            return _UNKNOWN

    def call(self, action: str, function: str, *arguments: object) -> Any:  # noqa: ANN401  # cuda-python's types are not known here
        """Call the driver; return what it gave out.

        Args:
            action: What it is for, as in ``"copy 8 bytes"``.
            function: Its name.
            arguments: Its own.

        Raises:
            BackendCallError: It failed.
        """
        status, given = self.status(function, *arguments)
        if status != SUCCESS:
            raise self.failed(action, self.failure(function, status))
        return given

    def take(
        self, action: str, function: str, *arguments: object, nbytes: int, of: str = ""
    ) -> Any:  # noqa: ANN401  # as for call
        """Make a call that takes memory.

        Args:
            action: As for ``call``.
            function: As for ``call``.
            arguments: As for ``call``.
            nbytes: What is asked for, in all.
            of: What there is too little of, where it is not the device's memory.

        Raises:
            OutOfMemoryError: There is too little.
            BackendCallError: It failed for another reason.
        """
        try:
            return self.call(action, function, *arguments)
        except BackendCallError as error:
            native = error.native
            if native.code != OUT_OF_MEMORY:
                raise
            if of:
                native = native._replace(text=f"{native.text}: {of}")
            report = OutOfMemoryReport(self.device, nbytes, native=native)
            raise OutOfMemoryError(report) from None

    def failure(self, function: str, status: int) -> NativeFailure:
        """Return what a status means, in the driver's words."""
        return NativeFailure(function, status, _text(self.driver, status))

    def failed(self, action: str, native: NativeFailure) -> BackendCallError:
        """Return the error for a call that failed."""
        error = BackendCallError(self.device, action, native)
        if native.code in _BROKEN:
            error.add_note(
                "A kernel or a copy before this call broke the CUDA context: nothing "
                "works on the device until the process is started anew. Try: "
                "CUDA_LAUNCH_BLOCKING=1, or compute-sanitizer, to see which one."
            )
        return error

    def _odd(self, function: str, code: int, error: Exception) -> BackendCallError:
        native = NativeFailure(function, code, str(error))
        return self.failed(f"call {function}", native)

    @contextlib.contextmanager
    def giving_back(self) -> Iterator[None]:
        """Ignore that the driver has shut down: it has freed everything itself."""
        try:
            yield
        except BackendCallError as error:
            if error.native.code != DEINITIALIZED:
                raise


def device_count(calls: CudaCalls) -> int:
    """Return how many devices the driver shows, as CUDA_VISIBLE_DEVICES leaves them."""
    return int(calls.call("count the devices", "cuDeviceGetCount"))


def _open_driver(device: str) -> ModuleType:
    if _processes and _processes[0] != os.getpid():
        raise ForkError(device, _processes[0])
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        reason = f"cuda-python cannot be imported: {error}; pip install 'madl[cuda]'"
        raise _not_found(device, reason) from error
    try:
        status = int(driver.cuInit(0)[0])
        version = int(driver.cuDriverGetVersion()[1])
    except (RuntimeError, ValueError) as error:  # no driver, or one without the calls
        raise _not_found(device, str(error)) from error
    if status != SUCCESS:
        failure = NativeFailure("cuInit", status, _text(driver, status))
        advice = _IN_A_CHILD if status == NOT_INITIALIZED else ""
        raise _not_found(device, f"{failure}{advice}")
    if version < OLDEST_VERSION:
        raise _not_found(
            device,
            f"the driver is for CUDA {version_text(version)}, madl needs "
            f"{version_text(OLDEST_VERSION)} or later; update the driver",
        )
    if not _processes:
        _processes.append(os.getpid())
    return driver


def _text(driver: ModuleType, status: int) -> str:
    """Return a status's name and the driver's words for it."""
    known = driver.CUresult(status)
    words = []
    for function in (driver.cuGetErrorName, driver.cuGetErrorString):
        found, text = function(known)
        if int(found) == SUCCESS and text:
            words.append(text.decode())
    return ": ".join(words) or known.name


def version_text(version: int) -> str:
    """Return a version of CUDA as people write it."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _not_found(device: str, reason: str) -> BackendNotFoundError:
    return BackendNotFoundError(device, KINDS, reason)
