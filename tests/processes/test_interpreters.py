"""Several interpreters in one process; modules that are loaded again."""

import os
import sys

import pytest

from madl.hotpath import IS_COMPILED
from tests.programs import output_of

USE = """
try:
    import madl
    pool = madl.Pool("cpu")
    pool.allocate("32 MiB").fill(1)
    kept = madl.allocate(1000), pool.allocate(5, tag="a"), madl.Pool("sim").allocate(5)
    view = kept[0].memoryview()
    print("works")
except ImportError as error:
    print("refused:", error)
"""

IN_ANOTHER = """
try:
    import _interpreters as interpreters
except ImportError:  # before Python 3.13
    import _xxsubinterpreters as interpreters
import sys

USE = {use!r}

def own_nbytes():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

def use_in_another():
    if sys.version_info < (3, 13):
        one = interpreters.create(isolated={is_isolated})
    else:
        one = interpreters.create("isolated" if {is_isolated} else "legacy")
    interpreters.run_string(one, "import sys\\n" + USE + "\\nsys.stdout.flush()")
    interpreters.destroy(one)
"""

if sys.implementation.name != "cpython":
    pytest.skip("needs subinterpreters", allow_module_level=True)


@pytest.mark.parametrize("is_isolated", [False, True])
def test_another_interpreter_uses_madl_or_is_told_why_not(is_isolated: bool) -> None:
    program = IN_ANOTHER.format(use=USE, is_isolated=is_isolated)

    flush = "sys.stdout.flush()"
    output = output_of(
        "-c", f"{program}\n{USE}\n{flush}\nuse_in_another()\nuse_in_another()"
    )

    here, *others = output.splitlines()
    assert here == "works"
    assert len(others) == 2
    for told in others:
        works = told == "works"
        assert works or (told.startswith("refused:") and "interpreter" in told), told
        assert not (works and IS_COMPILED), "compiled modules have one state"
        assert works or IS_COMPILED or is_isolated, told


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_interpreter_that_ends_gives_back_what_is_free_in_silence() -> None:
    program = IN_ANOTHER.format(use=USE, is_isolated=False)

    output = output_of(
        "-c",
        f"{program}\nstart = own_nbytes()\nuse_in_another()\nprint(own_nbytes()-start)",
    )

    told, grown = output.splitlines()
    assert told == "works", "it is the first that loads the modules"
    assert int(grown) < 24 << 20


RELOAD = """
import gc, importlib, os, sys
import madl

held = madl.allocate(1000)
view = held.memoryview()
pool = madl.Pool("cpu")
tagged = pool.allocate(5, tag="a")

def use():
    new = madl.Pool("cpu")
    with new.allocate(1000, tag="t") as memory:
        memory.fill(1)
        assert memory.tobytes() == bytes([1]) * 1000
    new.check()
    new.trim()
    with madl.tag("limited", limit="1 MiB"):
        madl.allocate(5).free()
    try:
        new.allocate("100 PiB")
    except MemoryError:
        pass
    else:
        raise AssertionError("there is no such memory")
    held.free()
    view[:] = b"x" * 1000
    tagged.free()
    for one in (pool, new):
        one.snapshot()
        one.check()
        assert one.close().live_count == 0

def reload(name):
    importlib.reload(sys.modules[name])
    use()
"""


WITH_STATE = [
    "madl.backends.registry",
    "madl.pool.limits",
    "madl.pool.default",
    "madl.pool.lifecycle",
    "madl.errors",
    "madl.pool.tracking",
    "madl.pool.parts",
    "madl.hotpath",
    "madl.hotpath.shared",
    "madl.memory.place",
    "madl.memory.methods",
    "madl.pool",
    "madl.memory.views",
]


def test_the_package_may_be_loaded_again() -> None:
    assert output_of("-c", RELOAD + "reload('madl')") == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_module_may_be_loaded_again() -> None:
    code = f"""
NAMES = {WITH_STATE}
gc.freeze()
for name in NAMES:
    child = os.fork()
    if child == 0:
        try:
            reload(name)
        except BaseException as error:
            print(name, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)
"""
    assert output_of("-W", "ignore", "-c", RELOAD + code) == ""


def test_all_modules_may_be_loaded_anew_beside_what_they_were() -> None:
    code = """
for name in [name for name in sys.modules if name.partition(".")[0] == "madl"]:
    del sys.modules[name]
old = madl
import madl
assert madl is not old
assert madl.allocate(5).nbytes == old.allocate(5).nbytes == 5
use()
"""
    assert output_of("-c", RELOAD + code) == ""
