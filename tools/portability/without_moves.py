"""Run a script or ``-m module`` with a cpu backend that moves no memory.

qemu's user mode for 32-bit guests reserves the source of a move again, without access,
where Linux leaves it mapped: what is committed there later cannot be touched.
"""

import runpy
import sys

from madl.backends.host import linux

if __name__ == "__main__":
    linux._probe_move = lambda: "qemu's user mode loses the source"
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
