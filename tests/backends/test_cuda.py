"""The suite of the CUDA backend, file by file, on a real driver or an emulated one.

``TEST_MADL_CUDA_DRIVER`` chooses: ``real``, ``emulated``, or by default the real one
where there is one.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from madl.testing.case import required_kinds
from tests.backends.cuda.emulator import build
from tests.programs import output_of
from tests.sweeps import IS_LONG

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "cuda"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
NOTHING_COLLECTED = 5

PROBE = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert driver.cuInit(0) == 0 == driver.cuDeviceGetCount(ctypes.byref(count))
assert count.value
"""


def has_real_driver() -> bool:
    probe = [sys.executable, "-c", PROBE]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def miss(reason: str) -> None:
    """Skip, or fail where CUDA is required."""
    if "cuda" in required_kinds():
        pytest.fail(f"MADL_REQUIRE names cuda, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return environment variables under which there is a driver."""
    if importlib.util.find_spec("cuda") is None:
        miss("cuda-bindings is not installed")
    wanted = os.environ.get("TEST_MADL_CUDA_DRIVER")
    if wanted != "emulated" and has_real_driver():
        return os.environ | {"TEST_MADL_CUDA_SUITE": "real"}
    if wanted == "real":
        miss("there is no NVIDIA driver with a device")
    if sys.platform != "linux" or shutil.which("gcc") is None:
        miss("emulating the driver needs Linux and gcc")
    folder = build(tmp_path_factory.mktemp("driver")).parent
    return os.environ | {
        "TEST_MADL_CUDA_SUITE": "emulated",
        "LD_LIBRARY_PATH": str(folder),
        "EMULATED_CUDA": "devices=2",
    }


ABSENT = """
import sys
{before}
import madl
from madl.backends import registry
assert not [device for device in madl.devices() if device.startswith("cuda")]
try:
    registry.open_device("cuda:0")
except madl.BackendNotFoundError as error:
    print(error.reason)
"""


def reason(before: str = "") -> str:
    """Return why there is no CUDA device, in a new process."""
    return output_of("-c", ABSENT.format(before=before)).strip()


def test_without_the_bindings_it_says_what_to_install() -> None:
    found = reason("sys.modules['cuda.bindings'] = sys.modules['cuda'] = None")

    assert found.startswith("cuda-python cannot be imported: ")
    assert found.endswith("; pip install 'madl[cuda]'")


def test_without_a_driver_it_says_so() -> None:
    if importlib.util.find_spec("cuda") is None:
        pytest.skip("cuda-bindings is not installed")
    if has_real_driver():
        pytest.skip("there is a driver")

    assert "driver" in reason()


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.timeout(3000 if IS_LONG else 300)
@pytest.mark.parametrize("file", FILES)
def test_the_suite_passes(file: str, environment: dict[str, str]) -> None:
    pytest_options = ("-q", "-rs", "-p", "no:cacheprovider", "--no-header")
    run = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *pytest_options, str(FOLDER / file)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    print(run.stdout)  # noqa: T201  # shown with -s, and when the test fails
    if run.returncode == NOTHING_COLLECTED and not is_real(environment):
        miss_peer(run.stdout)
    assert run.returncode in (0, NOTHING_COLLECTED), run.stdout + run.stderr


def miss_peer(output: str) -> None:
    """Skip a file for which another library is missing, or fail if it is required."""
    reason = "".join(re.findall(r"SKIPPED.*?: (.*)", output)) or output
    if "ecosystem" in required_kinds():
        pytest.fail(f"MADL_REQUIRE names ecosystem, but {reason}")
    pytest.skip(reason)


def is_real(environment: dict[str, str]) -> bool:
    return environment["TEST_MADL_CUDA_SUITE"] == "real"
