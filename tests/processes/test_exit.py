"""A program may end with memory alive: no crash, no message, exit code 0."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAMS = {
    "module globals": """
        pool = madl.Pool("cpu")
        memory = pool.allocate(1000)
        array = memory.as_array("float64", 5)
        view = pool.allocate(1 << 22, tag="a").memoryview()
    """,
    "default pool": """
        held = [madl.allocate(n * 1000) for n in range(100)]
        arrays = [madl.zeros((n, n)) for n in range(20)]
    """,
    "freed handle, living view": """
        memory = madl.allocate(1000)
        view = memory.memoryview()[3:5]
        memory.free()
    """,
    "slice": """
        part = madl.allocate(1000)[5:10]
        view = part.memoryview()
    """,
    "cycle": """
        class Node: pass
        node = Node()
        node.itself = node
        node.memory = madl.allocate(1000)
        node.view = node.memory.memoryview()
        node.array = madl.zeros(10)
        node.pool = madl.Pool("cpu")
        node.other = node.pool.allocate(5)
    """,
    "closed pool": """
        pool = madl.Pool("cpu")
        memory = pool.allocate(1000)
        array = pool.allocate(1000).as_array()
        pool.close()
    """,
    "closed pool in a cycle": """
        class Node: pass
        node = Node()
        node.itself = node
        node.pool = madl.Pool("cpu")
        node.memory = node.pool.allocate(5)
        node.view = node.pool.allocate(5).memoryview()
        node.pool.close()
    """,
    "kept by a builtin module": """
        import sys
        sys.kept = [madl.allocate(10), madl.empty(3), madl.Pool("sim").allocate(5)]
        import builtins
        builtins.kept = madl.allocate(10).memoryview()
        pool = madl.Pool("cpu")
        builtins.closed = pool.allocate(5)
        pool.close()
    """,
    "kept until the names of sys are gone": """
        import sys
        class Last:
            def __del__(self): pass  # has the names of this module
        pool = madl.Pool("cpu")
        memory = pool.allocate(5)
        pool.close()
        sys.last = Last()
    """,
    "daemon thread": """
        import threading, time
        pool = madl.Pool("cpu")
        def work():
            held = []
            while True:
                held.append(pool.allocate(len(held) * 100 + 1))
                held[-1].memoryview()[0] = 1
                if len(held) > 50:
                    del held[::2]
                    pool.trim()
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.1)
    """,
    "finalizers that allocate": """
        class Late:
            def __del__(self, pool=madl.default_pool()):
                pool.allocate(1000).fill(1)
                self.view[:] = b"x" * 10
        late = Late()
        late.view = madl.allocate(10).memoryview()
        late.itself = late
        other = Late()
        other.view = madl.allocate(10).memoryview()
    """,
    "atexit": """
        import atexit
        memory = madl.allocate(10)
        atexit.register(lambda: (memory.fill(1), madl.allocate(5), memory.free()))
    """,
    "open recording": """
        import os, tempfile
        folder = tempfile.mkdtemp()
        context = madl.record(os.path.join(folder, "run.trace.gz"))
        context.__enter__()
        held = [madl.allocate(n) for n in range(10)]
        context.__exit__(None, None, None)
        later = madl.tag("a")
        later.__enter__()
        tagged = madl.allocate(10)
    """,
    "no pooling": """
        pool = madl.Pool("cpu", pooling=False)
        memory = pool.allocate(10)
        view = pool.allocate(10).memoryview()
    """,
    "reclaimers": """
        pool = madl.Pool("cpu")
        memory = pool.allocate(10)
        pool.on_out_of_memory(lambda nbytes: memory.free())
    """,
    "sys.exit in a with block": """
        import sys
        with madl.Pool("cpu") as pool, pool.allocate(10) as memory:
            array = memory.as_array()
            sys.exit(0)
    """,
    "held by a thread that ended": """
        import threading
        local = threading.local()
        def work(): local.memory = madl.allocate(10)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """,
}


def run(program: str, *options: str) -> tuple[int, str, str]:
    lines = [line.removeprefix("        ") for line in program.splitlines()]
    done = subprocess.run(
        [sys.executable, *options, "-c", "\n".join(["import madl", *lines])],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "default::ResourceWarning"},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_ends_in_silence(program: str) -> None:
    assert run(PROGRAMS[program]) == (0, "", "")


@pytest.mark.parametrize("program", ["module globals", "cycle", "closed pool"])
def test_a_program_ends_in_silence_in_development_mode(program: str) -> None:
    assert run(PROGRAMS[program], "-X", "dev") == (0, "", "")


def test_an_error_that_ends_a_program_is_the_only_message() -> None:
    status, output, error = run("""
        memory = madl.allocate(10)
        array = memory.as_array()
        raise SystemExit("as the program says")
    """)

    assert (status, output, error) == (1, "", "as the program says\n")


BUSY = """
        import os, signal, sys, threading, time
        pool = madl.Pool("cpu", page_size="64 KiB")
        spilled = madl.Spillable(pool.allocate(100_000))
        spilled.spill()
        held = [pool.allocate(n * 100, tag="a") for n in range(50)]
        views = [memory.memoryview() for memory in held]
        def work():
            mine = []
            while True:
                mine.append(pool.allocate(len(mine) * 999 + 1, tag="b"))
                mine[-1].memoryview()[0] = 1
                if len(mine) > 30:
                    del mine[::2]
                    pool.trim()
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.05)
"""

ENDS = {
    "os._exit": ("os._exit(3)", 3, ""),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "an error": ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    "sys.exit in a thread": (
        "thread = threading.Thread(target=sys.exit)\n"
        "thread.start(); thread.join(); sys.exit(3)",
        3,
        "",
    ),
    "sys.exit in a signal handler": (
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(3))\n"
        "signal.raise_signal(signal.SIGINT)",
        3,
        "",
    ),
}
if sys.platform != "win32":
    ENDS["exec"] = (
        "os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(3)'])",
        3,
        "",
    )
    SIGNALS = {
        "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", ""),
        "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL); time.sleep(9)", ""),
        "SIGINT": (
            "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
            "KeyboardInterrupt\n",
        ),
    }
    for name, (line, message) in SIGNALS.items():
        ENDS[name] = (line, -getattr(signal, name), message)


@pytest.mark.parametrize("end", ENDS)
def test_a_program_may_end_while_other_threads_are_inside_a_pool(end: str) -> None:
    lines, expected_status, message = ENDS[end]
    indented = "\n".join(" " * 8 + line for line in lines.splitlines())

    status, output, error = run(BUSY + indented)

    assert (status, output) == (expected_status, "")
    assert error.endswith(message)
    assert error.count("Error") + error.count("Interrupt") == bool(message), error
