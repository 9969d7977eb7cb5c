"""Debug mode in programs of their own: guard pages, the end of a program, forks."""

import mmap
import os

import pytest

from madl import Pool
from tests.programs import output_of, run

BESIDE_PAGES = """
import ctypes, madl
pool = madl.Pool("cpu", debug="pages")
memory = pool.allocate({nbytes})
ctypes.memset(memory.address, 1, memory.nbytes)
pool.check()
print("before", flush=True)
ctypes.memset(memory.address + {first}, 1, 1)
print("after", flush=True)
"""

AFTER_FREE = """
import ctypes, madl
pool = madl.Pool("cpu", debug="pages")
memory = pool.allocate(1 << 20)
address = memory.address
memory.free()
pool.allocate(8).free()
pool.check()
print("before", flush=True)
ctypes.string_at(address, 1)
print("after", flush=True)
"""

DAMAGED_AT_EXIT = """
import ctypes, madl
pool = madl.Pool("cpu", debug=True)
kept = pool.allocate(100, tag="kept")
gone = pool.allocate(200, tag="gone")
address = gone.address
gone.free()
ctypes.memset(kept.address + 100, 1, 1)
ctypes.memset(address, 1, 1)
"""

IN_A_CHILD = """
import ctypes, os, madl
pool = madl.Pool("cpu", debug=True)
memory = pool.allocate(100)
child = os.fork()
if child == 0:
    ctypes.memset(memory.address + 100, 1, 1)
    try:
        memory.free()
    except madl.MemoryCorruptionError as error:
        print("child", error.damages[0].kind, flush=True)
    pool.allocate(100).free()
    pool.check()
    os._exit(0)
os.waitpid(child, 0)
pool.check()
memory.free()
print("parent", "well")
"""


@pytest.fixture
def _has_guard_pages() -> None:
    Pool("cpu", debug="pages")


@pytest.mark.usefixtures("_has_guard_pages")
@pytest.mark.parametrize(
    ("nbytes", "first"),
    [(1 << 20, 1 << 20), (1_000_000, 1_000_000 + 512), (1 << 20, -mmap.PAGESIZE - 1)],
    ids=["right behind", "a little behind", "before"],
)
def test_a_touch_of_a_guard_page_ends_the_program(nbytes: int, first: int) -> None:
    code, printed, _ = run(BESIDE_PAGES.format(nbytes=nbytes, first=first))

    assert code != 0
    assert printed == "before\n"


@pytest.mark.usefixtures("_has_guard_pages")
def test_a_touch_of_a_freed_block_ends_the_program() -> None:
    code, printed, _ = run(AFTER_FREE)

    assert code != 0
    assert printed == "before\n"


@pytest.mark.usefixtures("_has_guard_pages")
def test_a_small_block_has_guard_bytes_only() -> None:
    code, printed, said = run(BESIDE_PAGES.format(nbytes=1000, first=1000))

    assert (code, printed) == (0, "before\nafter\n")
    assert "overrun of a block of 1000 B" in said


def test_damage_is_told_at_the_end_of_a_program() -> None:
    code, _, said = run(DAMAGED_AT_EXIT)

    assert code == 0
    assert said.count("errors.MemoryCorruptionError") == 1
    assert "overrun of a block of 100 B" in said
    assert "use after free of a block of 200 B" in said


@pytest.mark.parametrize("held", ["pool.allocate(100)", "madl.zeros(100)", "None"])
def test_a_program_without_damage_ends_in_silence(held: str) -> None:
    program = f"import madl\npool = madl.Pool('cpu')\nheld = {held}\n"

    assert run(program, MADL_DEBUG="1") == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_guards_of_its_own() -> None:
    assert output_of("-c", IN_A_CHILD) == "child overrun\nparent well\n"
