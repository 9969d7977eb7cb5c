"""The emulated driver sees what a real one would punish, or let pass in silence."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from cuda.bindings import driver

from madl.backends.cuda import CudaBackend
from tests.backends.cuda.content import PAGE
from tests.backends.cuda.emulator import Emulator

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE = 1, 201, 400


HOST = (ctypes.c_char * 8)()


class Raw(NamedTuple):
    """The driver itself, and what a test starts with."""

    emulator: Emulator
    properties: Any
    access: Any
    at: int
    handle: Any


def done(result: tuple[Any, ...]) -> Any:  # noqa: ANN401  # what the driver gives out
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else None


@pytest.fixture
def raw(emulator: Emulator) -> Any:  # noqa: ANN401  # it gives back what it made
    """Return two pages of addresses, and memory that is mapped at the first."""
    device = CudaBackend(0)
    done(driver.cuCtxSetCurrent(device._device.context))
    assert device._pages is not None
    properties, access = device._pages._properties, device._pages._access
    at = int(done(driver.cuMemAddressReserve(2 * PAGE, 0, 0, 0)))
    handle = done(driver.cuMemCreate(PAGE, properties, 0))
    done(driver.cuMemMap(at, PAGE, 0, handle, 0))
    yield Raw(emulator, properties, access, at, handle)
    done(driver.cuMemUnmap(at, PAGE))
    done(driver.cuMemRelease(handle))
    done(driver.cuMemAddressFree(at, 2 * PAGE))


MISUSES: dict[str, Callable[[Raw], tuple[Any, ...]]] = {
    "reserve half a page": lambda it: driver.cuMemAddressReserve(PAGE // 2, 0, 0, 0),
    "create half a page": lambda it: driver.cuMemCreate(PAGE // 2, it.properties, 0),
    "map between pages": lambda it: driver.cuMemMap(
        it.at + PAGE // 2, PAGE, 0, it.handle, 0
    ),
    "map where something is": lambda it: driver.cuMemMap(it.at, PAGE, 0, it.handle, 0),
    "map outside": lambda it: driver.cuMemMap(it.at + 2 * PAGE, PAGE, 0, it.handle, 0),
    "map a part": lambda it: driver.cuMemMap(it.at + PAGE, PAGE // 2, 0, it.handle, 0),
    "unmap what is not mapped": lambda it: driver.cuMemUnmap(it.at + PAGE, PAGE),
    "unmap a part": lambda it: driver.cuMemUnmap(it.at, PAGE // 2),
    "unmap more": lambda it: driver.cuMemUnmap(it.at, 2 * PAGE),
    "allow what is not mapped": lambda it: driver.cuMemSetAccess(
        it.at, 2 * PAGE, [it.access], 1
    ),
    "free mapped addresses": lambda it: driver.cuMemAddressFree(it.at, 2 * PAGE),
    "free some addresses": lambda it: driver.cuMemAddressFree(it.at, PAGE),
    "free what is not allocated": lambda it: driver.cuMemFree(it.at),
    "use before access": lambda it: driver.cuMemsetD8Async(it.at, 0, 8, 0),
    "copy to the host by its name for the device": lambda it: driver.cuMemcpyHtoD(
        ctypes.addressof(HOST), bytes(8), 8
    ),
    "release no handle": lambda it: driver.cuMemRelease(12345),
    "allocate nothing": lambda it: driver.cuMemAlloc(0),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_a_misuse_is_refused_and_noted(
    misuse: Callable[[Raw], tuple[Any, ...]], raw: Raw
) -> None:
    before = raw.emulator.left()

    status = int(misuse(raw)[0])

    assert status == INVALID_VALUE
    assert len(raw.emulator.misuses()) == 1
    assert raw.emulator.left() == before
    raw.emulator.forget_misuses()


def test_a_handle_is_released_once(raw: Raw) -> None:
    handle = done(driver.cuMemCreate(PAGE, raw.properties, 0))
    done(driver.cuMemRelease(handle))

    assert int(driver.cuMemRelease(handle)[0]) == INVALID_VALUE
    raw.emulator.forget_misuses()


def test_a_handle_at_two_places_is_the_same_memory(raw: Raw) -> None:
    other = raw.at + PAGE
    done(driver.cuMemMap(other, PAGE, 0, raw.handle, 0))
    done(driver.cuMemSetAccess(raw.at, 2 * PAGE, [raw.access], 1))
    found = bytearray(8)

    done(driver.cuMemsetD8(raw.at, 7, PAGE))
    done(driver.cuMemcpyDtoH(found, other, 8))

    assert found == b"\x07" * 8
    done(driver.cuMemUnmap(other, PAGE))


def test_a_thread_without_a_context_is_refused(raw: Raw) -> None:
    raw.emulator.leave()

    assert int(driver.cuMemAlloc(8)[0]) == INVALID_CONTEXT
    raw.emulator.forget_misuses()


def test_a_stream_that_is_gone_is_refused(raw: Raw) -> None:
    stream = done(driver.cuStreamCreate(1))
    done(driver.cuStreamDestroy(stream))

    assert int(driver.cuStreamSynchronize(stream)[0]) == INVALID_HANDLE
    raw.emulator.forget_misuses()


def test_an_event_that_is_gone_is_refused(raw: Raw) -> None:
    event = done(driver.cuEventCreate(0))
    done(driver.cuEventDestroy(event))

    assert int(driver.cuEventRecord(event, 0)[0]) == INVALID_HANDLE
    raw.emulator.forget_misuses()


def test_the_host_cannot_read_the_device(emulator: Emulator) -> None:
    code = """
import ctypes
from madl.backends.cuda import CudaBackend
backend = CudaBackend(0, memory="segments")
ctypes.string_at(backend.reserve(4096).address, 1)
"""

    run = subprocess.run([sys.executable, "-P", "-c", code], check=False)

    assert run.returncode == -signal.SIGSEGV


def test_what_is_left_at_the_end_is_said(emulator: Emulator) -> None:
    code = """
from madl.backends.cuda import CudaBackend
backend = CudaBackend(0)
reservation = backend.reserve(8 << 20)
backend.commit(reservation, 0, 4 << 20)
"""

    run = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | {"EMULATED_CUDA": "report=1"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stderr.splitlines() == [
        "emulated CUDA: 2 handles left",
        "emulated CUDA: 2 mappings left",
        "emulated CUDA: 1 reservations left",
        "emulated CUDA: 4194304 device_nbytes left",
        "emulated CUDA: 8388608 address_nbytes left",
    ]
