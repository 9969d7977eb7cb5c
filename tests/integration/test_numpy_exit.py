"""Routed arrays may live when the interpreter exits, or in a child that was forked."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("madl.native.numpy_handler")

RUNS = 50
ALIVE = """
import builtins, sys, threading
import numpy as np
import madl
from madl.integrations.numpy import route

pool = madl.Pool("cpu")
inside = route(1, pool)
inside.install()
kept = np.ones(1000)
sys.modules["kept to the end"] = np.ones(1 << 18)
builtins.kept_longer = np.ones(1 << 18)
cycle = [np.ones(1000)]
cycle.append(cycle)
others = route("4 KiB")
others.install()
builtins.of_the_default_pool = np.zeros(1 << 20)

class Late:
    def __del__(self, np=np, kept=kept):
        self.array = np.ones(10)
        self.large = np.ones(1 << 16)
        self.large.resize(1 << 17, refcheck=False)
        kept.resize(1 << 17, refcheck=False)

builtins.late = Late()
threading.Thread(target=lambda: np.ones(1 << 16), daemon=True).start()
if sys.argv[1] == "closed":
    pool.close()
"""
FORKED = """
import os, sys, threading
import numpy as np
import madl
from madl.integrations.numpy import route

pool = madl.Pool("cpu")
route("4 KiB", pool).install()

def work():
    with route("4 KiB", pool):
        while True:
            np.ones(1 << 14)

threading.Thread(target=work, daemon=True).start()
array = np.arange(1 << 16)
for _ in range(20):
    child = os.fork()
    if child == 0:
        assert (array == np.arange(1 << 16)).all()
        del array
        os._exit(0 if np.ones(1 << 16).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert array[-1] == (1 << 16) - 1
"""


def run(program: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_exit_with_live_arrays_is_silent() -> None:
    pools = ["open", "closed"] * (RUNS // 2)

    with ThreadPoolExecutor(os.cpu_count()) as executor:
        ends = set(executor.map(lambda state: run(ALIVE, state), pools))

    assert ends == {(0, "")}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_allocates_and_frees() -> None:
    assert run(f"import warnings; warnings.simplefilter('ignore'){FORKED}") == (0, "")
