"""Where the compiled core asks for memory and there is none; see ``mallocs.py``."""

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from madl.hotpath import IS_COMPILED
from tests.backends.cuda.emulator import build

SCRIPT = Path(__file__).parents[1] / "mallocs.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not IS_COMPILED, reason="it is about the compiled core"),
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc" or shutil.which("gcc") is None,
        reason="failing malloc on demand needs glibc and gcc",
    ),
]


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("mallocs") / "mallocs.so"
    flags = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    source = SCRIPT.with_suffix(".c")
    subprocess.run(["gcc", *flags, "-o", library, source], check=True)
    return library


def sweep(preloaded: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """Return the counts of a sweep, which has to end well and in silence."""
    done = subprocess.run(
        [sys.executable, "-P", "-X", "faulthandler", SCRIPT, *arguments],
        env=os.environ | {"LD_PRELOAD": str(preloaded)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_whichever_malloc_of_the_core_fails_its_pools_stay_sound(
    preloaded: Path,
) -> None:
    found = sweep(preloaded)

    assert min(found["failed"].values()) > 10
    assert found["places"] > 10


@pytest.mark.cuda
@pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None, reason="cuda-bindings is not installed"
)
def test_whichever_malloc_fails_a_device_pool_stays_sound(
    preloaded: Path, tmp_path: Path
) -> None:
    folder = str(build(tmp_path).parent)

    found = sweep(
        preloaded, "--device", LD_LIBRARY_PATH=folder, EMULATED_CUDA="devices=2"
    )

    assert min(found["failed"].values()) > 3
