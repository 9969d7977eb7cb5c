"""Errors: the whole text of each, and that each survives pickling."""

import pickle

import pytest

from madl import errors
from madl.errors import (
    AttachError,
    BackendCallError,
    BackendError,
    BackendNotFoundError,
    ConfigurationError,
    CorruptedPoolError,
    FileFormatError,
    ForkError,
    FreedMemoryError,
    LeakError,
    MadlError,
    MemoryCorruptionError,
    MissingCapabilityError,
    NativeFailure,
    NotContiguousError,
    OutOfMemoryError,
    OutOfMemoryReport,
    UnknownBlockError,
)
from madl.errors.damage import OVERRUN, Damage
from madl.stacks import Line

MIB = 1 << 20
MMAP = NativeFailure("mmap", 12, "Cannot allocate memory")
MADE, FREED = Line("train.py", 7, "step"), Line("train.py", 9, "step")

EXAMPLES: list[tuple[MadlError, str]] = [
    (
        FreedMemoryError("cpu", 4096, "free()"),
        "cpu: free() on memory of 4.0 KiB that was freed. Try: keep the Memory until "
        "its last use, or copy what is needed before free()",
    ),
    (
        AttachError("shared", 4096, "process 7, which sent it, has ended"),
        "shared: cannot attach 4.0 KiB: process 7, which sent it, has ended. Try: send "
        "the token to each process anew, and end the sender later",
    ),
    (
        UnknownBlockError(512, 64),
        "no live block of 64 bytes starts at offset 512. Try: free each block once, "
        "with the size it was given",
    ),
    (
        NotContiguousError((2, 3), (24, 8)),
        "shape (2, 3) with strides (24, 8) is not C-contiguous. Try: "
        "numpy.ascontiguousarray on it first",
    ),
    (
        CorruptedPoolError("free bytes", 3, 4),
        "free bytes: found 3, expected 4. Try: report it with the steps before; it is "
        "a bug in madl, or something wrote outside its memory",
    ),
    (
        LeakError("cpu", (("weights", (3 * MIB, 2)), ("(no tag)", (100, 1)))),
        "cpu: blocks that were not freed, by tag: weights: 3.0 MiB in 2, "
        "(no tag): 100 B in 1. Try: free each Memory, or leak_check(depth=4) to see "
        "where they come from",
    ),
    (
        MemoryCorruptionError(
            (
                Damage(
                    OVERRUN,
                    *("cpu", 1000, 512, 0x1400, "weights"),
                    *(1000, 1020, b"\1" * 16),
                    *((MADE,), (FREED,)),
                ),
                Damage(OVERRUN, "sim", 8, 0, None, None, 8, 9, b"\2", (), ()),
            )
        ),
        "cpu: overrun of a block of 1000 B at 0x1400 (offset 512), tag 'weights': "
        "bytes 1000 to 1019 were written, and are "
        "01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01...\n"
        "  allocated at\n"
        "    train.py:7 in step\n"
        "  freed at\n"
        "    train.py:9 in step\n"
        "sim: overrun of a block of 8 B (offset 0), without a tag: byte 8 was "
        "written, and is 02\n"
        "Try: look at what has used these blocks since, or the ones beside them; "
        "pool.check() in between narrows down when it was written",
    ),
    (FileFormatError("a.trace", 7, "no events"), "a.trace:7: no events"),
    (
        ConfigurationError(
            "MADL_FIT",
            "MADL_FIT must be first or best, got 'x'",
            "unset it, which means first",
        ),
        "MADL_FIT must be first or best, got 'x'. Try: unset it, which means first",
    ),
    (FileFormatError("a.trace", 0, "no events"), "a.trace: no events"),
    (
        BackendNotFoundError("cuda:0", ("cpu", "sim"), "no driver"),
        "no backend opens device 'cuda:0' (no driver); kinds that madl knows: "
        "cpu, sim. Try: `madl info`, or install the extra or plugin for that device",
    ),
    (
        BackendNotFoundError("abc", ("cpu",), ""),
        "no backend opens device 'abc'; kinds that madl knows: cpu. "
        "Try: `madl info`, or install the extra or plugin for that device",
    ),
    (
        BackendCallError("cpu", "release", MMAP),
        "cpu: cannot release: mmap failed with 12 (Cannot allocate memory)",
    ),
    (
        MissingCapabilityError("sim", "addresses", "another device"),
        "sim has no addresses. Try: another device",
    ),
    (
        ForkError("cuda:0", 42),
        "cuda:0 was opened by process 42 and cannot be used after fork. Try: "
        "multiprocessing with the 'spawn' start method, or fork before any device is "
        "opened",
    ),
    (
        OutOfMemoryError(OutOfMemoryReport("cpu", MIB, native=MMAP)),
        "cpu: cannot place 1.0 MiB; mmap failed with 12 (Cannot allocate memory). "
        "Try: free some memory, or end other programs that use this device.",
    ),
    (
        OutOfMemoryError(
            OutOfMemoryReport("cpu", 3 * MIB, 3 * MIB, limit_nbytes=2 * MIB)
        ),
        "cpu: cannot place 3.0 MiB\n"
        "  committed   0 B, limit 2.0 MiB\n"
        "  live        0 B in 0 blocks, and 0 B padding\n"
        "  free        0 B, largest 0 B, in bins 0 B, fragmentation 0.00\n"
        "Try: a limit of at least 3.0 MiB, or a smaller request.",
    ),
]


@pytest.mark.parametrize(("error", "text"), EXAMPLES)
def test_the_text_says_what_happened_and_what_to_try(
    error: MadlError, text: str
) -> None:
    assert str(error) == text


@pytest.mark.parametrize("error", [error for error, _ in EXAMPLES])
def test_an_error_survives_pickling(error: MadlError) -> None:
    copied = pickle.loads(pickle.dumps(error))

    assert type(copied) is type(error)
    assert (copied.args, str(copied), vars(copied)) == (
        error.args,
        str(error),
        vars(error),
    )


@pytest.mark.parametrize("error", [error for error, _ in EXAMPLES])
def test_an_error_can_be_made_by_its_new(error: MadlError) -> None:
    # So does tblib, which carries errors of Dask's tasks.
    made = type(error).__new__(type(error), *error.args)

    assert made.args == error.args


def test_every_error_has_an_example() -> None:
    defined = {
        item
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, MadlError)
    }

    assert {type(error) for error, _ in EXAMPLES} == defined - {MadlError, BackendError}


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (OutOfMemoryError, MemoryError),
        (FreedMemoryError, ValueError),
        (UnknownBlockError, ValueError),
        (NotContiguousError, ValueError),
        (CorruptedPoolError, AssertionError),
        (FileFormatError, ValueError),
        (BackendNotFoundError, BackendError),
        (BackendNotFoundError, LookupError),
        (BackendCallError, RuntimeError),
        (AttachError, RuntimeError),
        (MissingCapabilityError, NotImplementedError),
        (ForkError, BackendError),
    ],
)
def test_an_error_is_the_built_in_that_callers_catch(
    error: type[Exception], base: type[Exception]
) -> None:
    assert issubclass(error, base)


def test_out_of_memory_names_the_numbers_of_its_report() -> None:
    report = OutOfMemoryReport(
        "sim", 7, limit_nbytes=5, free_nbytes=3, largest_free_nbytes=2
    )

    error = OutOfMemoryError(report)

    assert (error.device, error.requested, error.limit) == ("sim", 7, 5)
    assert (error.free, error.largest_free) == (3, 2)
