"""The short lock of a pool: what waits for it, and what nothing does under it."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import madl
from madl import Pool
from madl.diagnostics import open_trace
from madl.hotpath import IS_COMPILED

HEADERS = Path(__file__).parents[2] / "madl" / "hotpath"

pytestmark = [
    pytest.mark.skipif(not IS_COMPILED, reason="it is about the compiled core"),
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc" or shutil.which("gcc") is None,
        reason="it is compiled, for glibc",
    ),
]

WAITER = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <unistd.h>
#include "guard.h"

static madl_guard guard;
static volatile int holds;

static void *wait_for_it(void *used_s) {
    struct timespec used;
    while (!holds) sched_yield();
    madl_enter(&guard);
    madl_leave(&guard);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    *(double *)used_s = used.tv_sec + used.tv_nsec * 1e-9;
    return NULL;
}

int main(void) {
    double used_s;
    pthread_t waiter;
    madl_enter(&guard);
    pthread_create(&waiter, NULL, wait_for_it, &used_s);
    holds = 1;
    usleep(500000);
    madl_leave(&guard);
    pthread_join(waiter, NULL);
    printf("%.3f", used_s);
    return 0;
}
"""

HELD_WRITES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

static volatile int is_holding, held;

void hold_writes(int is_to) { is_holding = is_to; }
int writes_held(void) { return held; }

ssize_t pwrite64(int file, const void *from, size_t nbytes, off64_t at) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    held++;
    while (is_holding) usleep(1000);
    return real(file, from, nbytes, at);
}

ssize_t pwrite(int file, const void *from, size_t nbytes, off_t at) {
    return pwrite64(file, from, nbytes, at);
}
"""

RECORDED_IN_C = """
import ctypes, sys, threading
import madl
from madl.native.functions import native_functions, time_pairs

library = ctypes.CDLL(None)
pool = madl.Pool("cpu", debug=False)
functions = native_functions(pool)
with madl.record(sys.argv[1]):
    library.hold_writes(1)
    before = library.writes_held()
    # A thread without the interpreter's lock fills the ring, and waits for the disk.
    thread = threading.Thread(target=time_pairs, args=(functions, 4096, 20_000))
    thread.start()
    while library.writes_held() == before:
        pass
    pool.stats()
    library.hold_writes(0)
    thread.join()
print("went on")
"""


def compiled(source: str, target: Path, *flags: str) -> Path:
    path = target.with_suffix(".c")
    path.write_text(source)
    warnings = ("-Wall", "-Wextra", "-Werror", "-pthread", f"-I{HEADERS}")
    subprocess.run(["gcc", "-O2", *warnings, *flags, path, "-o", target], check=True)
    return target


def test_who_waits_for_long_sleeps(tmp_path: Path) -> None:
    """A spinning thread of a real time priority would keep the holder from running."""
    waiter = compiled(WAITER, tmp_path / "waiter")

    used_s = float(subprocess.run([waiter], capture_output=True, check=True).stdout)

    assert used_s < 0.1


def test_no_guard_is_held_while_a_recording_writes_to_its_file(tmp_path: Path) -> None:
    library = compiled(HELD_WRITES, tmp_path / "held.so", "-shared", "-fPIC")

    done = subprocess.run(
        [sys.executable, "-P", "-c", RECORDED_IN_C, tmp_path / "run.trace"],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.stdout, done.stderr) == ("went on\n", "")
    trace = open_trace(tmp_path / "run.trace")
    assert (trace.allocations, trace.frees) == (20_000, 20_000)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_what_does_not_fit_into_the_rest_of_the_ring_is_not_torn(
    before: int, tmp_path: Path
) -> None:
    """A tagged allocation is two records, and may find room for one."""
    pool = Pool("sim", debug=False)
    held = []

    with madl.record(tmp_path / "run.trace"):
        held += [pool.allocate(512) for _ in range(before)]
        for _ in range(12_000):  # two rings of records
            pool.allocate(512, tag="some").free()

    trace = open_trace(tmp_path / "run.trace")
    assert (trace.allocations, trace.frees) == (before + 12_000, 12_000)
    assert trace.tags == (None, "some")
    assert trace.tag_of is not None
    assert [*trace.tag_of] == [0] * before + [1] * 12_000
