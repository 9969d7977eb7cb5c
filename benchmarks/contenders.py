"""Who allocates and frees: madl and its peers, each as a loop of pairs."""

import ctypes
import ctypes.util
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from madl import Pool, hotpath

Pairs = Callable[[int, int], object]
"""Called with a size and a count: so many pairs of that size."""


def freeing(allocate: Callable[[int], Any], method: str = "free") -> Pairs:
    """Return a loop that frees each handle by a method."""

    def free(nbytes: int, count: int) -> None:
        for _ in range(count):
            memory = allocate(nbytes)
            memory.free()

    def release(nbytes: int, count: int) -> None:
        for _ in range(count):
            memory = allocate(nbytes)
            memory.release()

    return {"free": free, "release": release}[method]


def dropping(allocate: Callable[[int], Any]) -> Pairs:
    """Return a loop that drops each handle."""

    def drop(nbytes: int, count: int) -> None:
        for _ in range(count):
            memory = allocate(nbytes)
            del memory

    return drop


def numpy_pairs(nbytes: int, count: int) -> None:
    """Make and drop arrays."""
    empty, uint8 = np.empty, np.uint8
    for _ in range(count):
        array = empty(nbytes, uint8)
        del array


def guarded_pool() -> Pool:
    """Return a pool that C code may enter without the interpreter's lock."""
    pool = Pool("cpu")
    _native().native_functions(pool)
    return pool


def native_pairs() -> Pairs:
    """Return a loop in C over a pool's C entry points."""
    native = _native()
    functions = native.native_functions(Pool("cpu"))
    time_pairs = native.time_pairs

    def pairs(nbytes: int, count: int) -> None:
        time_pairs(functions, nbytes, count)

    return pairs


def _native() -> Any:  # noqa: ANN401  # a module that only the compiled build has
    if not hotpath.IS_COMPILED:
        raise ImportError("this madl is pure Python, without C entry points")
    return importlib.import_module("madl.native.functions")


def opencl_pool() -> Any:  # noqa: ANN401  # pyopencl may be missing
    """Return PyOpenCL's pool over PoCL.

    Raises:
        ImportError: One of them is missing.
    """
    queue = opencl_queue()
    tools = importlib.import_module("pyopencl.tools")
    return tools.MemoryPool(tools.ImmediateAllocator(queue))


def opencl_queue() -> Any:  # noqa: ANN401  # pyopencl may be missing
    """Return a queue of PoCL.

    Raises:
        ImportError: It is missing, or pyopencl is.
    """
    cl = importlib.import_module("pyopencl")
    try:
        platforms = cl.get_platforms()
    except cl.LogicError as error:
        raise ImportError(f"no OpenCL platform ({error})") from None
    for platform in platforms:
        if platform.name == "Portable Computing Language":
            return cl.CommandQueue(cl.Context(platform.get_devices()))
    raise ImportError("no PoCL (Debian: pocl-opencl-icd)")


def has_opencl_pool() -> bool:
    """Whether there is one; raises ImportError with the reason where not."""
    return opencl_pool() is not None


def umf_pairs() -> Pairs:
    """Return a loop over UMF's disjoint pool, called as Python calls C: by ctypes.

    Raises:
        ImportError: The library is not there.
    """
    beside_python = Path(sys.prefix, "lib", "libumf.so")
    name = str(beside_python) if beside_python.exists() else "libumf.so.1"
    try:
        umf = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(f"no UMF ({error}); it is `umf` on PyPI") from None
    pool = _disjoint_pool(umf)
    take, give = umf.umfPoolMalloc, umf.umfPoolFree
    take.argtypes, take.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
    give.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def pairs(nbytes: int, count: int) -> None:
        for _ in range(count):
            pointer = take(pool, nbytes)
            give(pool, pointer)

    return pairs


def _disjoint_pool(umf: ctypes.CDLL) -> int:
    """Return a pool over the operating system's memory that keeps blocks of any size.

    Raises:
        ImportError: UMF refused.
    """

    def made(create: str, *arguments: object) -> ctypes.c_void_p:
        result = ctypes.c_void_p()
        code = getattr(umf, create)(*arguments, ctypes.byref(result))
        if code:
            raise ImportError(f"UMF's {create} returned {code}")
        return result

    for name in ("umfOsMemoryProviderOps", "umfDisjointPoolOps"):
        getattr(umf, name).restype = ctypes.c_void_p
    provider = made(
        "umfMemoryProviderCreate",
        ctypes.c_void_p(umf.umfOsMemoryProviderOps()),
        made("umfOsMemoryProviderParamsCreate"),
    )
    parameters = made("umfDisjointPoolParamsCreate")
    umf.umfDisjointPoolParamsSetMaxPoolableSize(parameters, ctypes.c_size_t(1 << 30))
    operations = ctypes.c_void_p(umf.umfDisjointPoolOps())
    pool = made("umfPoolCreate", operations, provider, parameters, 0)
    assert pool.value is not None
    return pool.value


def numpy_allocator_pairs() -> Pairs:
    """Return a loop of arrays whose data numpy-allocator takes from the C library.

    Raises:
        ImportError: It is not installed.
    """
    numpy_allocator = importlib.import_module("numpy_allocator")
    libc = ctypes.CDLL(None)
    names = ("calloc", "free", "malloc", "realloc")
    addresses = {f"_{name}_": ctypes.addressof(getattr(libc, name)) for name in names}
    allocator = numpy_allocator.type("allocator", (), addresses)

    def pairs(nbytes: int, count: int) -> None:
        assert libc is not None  # it holds what the addresses point at
        with allocator:
            numpy_pairs(nbytes, count)

    return pairs
