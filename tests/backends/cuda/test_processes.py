"""Processes that fork, that end, and that find no driver or an old one."""

import os
import subprocess
import sys

import pytest

from tests.backends.cuda.conftest import DRIVER
from tests.backends.cuda.emulator import Emulator

HEAD = """
import os, sys
from madl import Pool
from madl.backends.cuda import CudaBackend, madl_devices
from madl.errors import BackendNotFoundError, ForkError
"""


def run(code: str, *, machine: str = "", says: str = "") -> str:
    """Run code in a new process, which says nothing else on stderr; return stdout."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", HEAD + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"EMULATED_CUDA": f"devices=2,{machine}"},
    )
    assert (done.returncode, done.stderr) == (0, says), done.stderr
    return done.stdout


FORKS = """
pool, backend = Pool("cuda:0"), CudaBackend(0)
memory, kept = pool.allocate(5_000_000), pool.allocate(5_000_000)
reservation = backend.reserve(4 << 20)
backend.commit(reservation, 0, 2 << 20)
event = backend.record(1)
child = os.fork()
if child == 0:
    for call in (
        lambda: backend.commit(reservation, 2 << 20, 2 << 20),
        lambda: backend.release(reservation),
        lambda: backend.fill(reservation, 0, 8, 0),
        lambda: backend.memory_info(),
        lambda: backend.record(1),
        lambda: CudaBackend(0),
        lambda: pool.allocate(50_000_000),
    ):
        try:
            call()
        except ForkError as error:
            assert error.parent_pid == os.getppid()
        else:
            raise AssertionError("no ForkError")
    memory.free()
    del kept, event
    sys.exit(0)
_, status = os.waitpid(child, 0)
backend.release(reservation)
memory.free()
kept.free()
pool.allocate(5_000_000).free()
pool.close()
print(status)
"""


BEYOND = """
try:
    CudaBackend(1)
except BackendNotFoundError as error:
    print(error.reason)
"""


def test_one_device_is_told_as_one(emulator: Emulator) -> None:
    found = run(BEYOND, machine="devices=1")

    assert found == "there is 1 CUDA device, counted from 0\n"


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_child_is_told_to_be_spawned_and_gives_nothing_back() -> None:
    # Of the test, of the wait, and behind what the pool has free; kept for the next.
    kept = "emulated CUDA: 3 events left\n" if DRIVER == "emulated" else ""

    assert run(FORKS, machine="report=1", says=kept).split() == ["0"]


FOREIGN_FORK = """
from cuda.bindings import driver
driver.cuInit(0)
child = os.fork()
if child == 0:
    try:
        CudaBackend(0)
    except BackendNotFoundError as error:
        assert "spawn" in error.reason, error
    else:
        raise AssertionError
    sys.exit(0)
print(os.waitpid(child, 0)[1])
"""


def test_a_child_of_a_process_that_used_the_driver_without_madl_is_told_too() -> None:
    assert run(FOREIGN_FORK).split() == ["0"]


ENDS = """
import threading
pool = Pool("cuda:0")
held = [pool.allocate(1_000_000) for _ in range(20)]
event = CudaBackend(0).record(1)
Pool("cuda_pinned:0").allocate(100)
class Late:
    def __del__(self):
        held.clear()
        pool.trim()
late = Late()
"""


@pytest.mark.parametrize(
    "how", ["", "import atexit; atexit.register(pool.close)", "late.self = late"]
)
def test_a_process_that_ends_says_nothing(how: str) -> None:
    assert run(ENDS + how) == ""


GONE = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
backend = CudaBackend(0)
for number in range(1, 12):
    reservation = backend.reserve(8 << 20)
    backend.commit(reservation, 0, 4 << 20)
    driver.emulated_fail(ctypes.c_longlong(number), 4, 0, 1)
    backend.release(reservation)
    driver.emulated_fail(ctypes.c_longlong(0), 0, 0, 0)
pool = Pool("cuda:0")
memory = pool.allocate(5_000_000)
driver.emulated_shut_down(1)
memory.free()
pool.close()
"""


def test_a_driver_that_goes_in_the_middle_of_a_release_is_let_go(
    emulator: Emulator,
) -> None:
    assert run(GONE) == ""


def reason(machine: str) -> str:
    """Return why there is no device, which must be quiet but when asked for."""
    code = """
import madl
assert not [device for device in madl.devices() if device.startswith("cuda")]
try:
    CudaBackend(0)
except BackendNotFoundError as error:
    print(error.reason)
"""
    return run(code, machine=machine).strip()


def test_a_machine_without_devices_has_none(emulator: Emulator) -> None:
    assert reason("devices=0") == (
        "cuInit failed with 100 (CUDA_ERROR_NO_DEVICE: no CUDA-capable device is "
        "detected)"
    )


def test_an_old_driver_is_named_with_what_is_needed(emulator: Emulator) -> None:
    assert reason("version=11080") == (
        "the driver is for CUDA 11.8, madl needs 12.0 or later; update the driver"
    )


def test_listing_devices_makes_no_context(emulator: Emulator) -> None:
    code = """
import ctypes
print(madl_devices())
found = ctypes.c_void_p()
active, flags = ctypes.c_int(), ctypes.c_uint()
driver = ctypes.CDLL("libcuda.so.1")
driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
print(active.value)
"""

    listed, is_active = run(code).splitlines()

    assert "'cuda:1'" in listed
    assert is_active == "0"
