"""Where kernels have the memory: as aligned as was asked for; nothing for no bytes."""

from collections.abc import Callable

import numpy as np
import pytest

from madl import Memory, MissingCapabilityError, Pool
from madl.backends.opencl import OpenclBackend
from madl.backends.opencl.calls import OpenclCalls
from tests.backends.opencl.device import pyopencl_or_skip

cl = pyopencl_or_skip()
pytestmark = pytest.mark.opencl

KIB = 1024
TELL = "kernel void tell(global uchar *p, global ulong *out) { out[0] = (ulong) p; }"


class Asked(OpenclBackend):
    """Asks a kernel where a buffer is, as on a device that is no CPU."""

    def __init__(self, queue: object, calls: OpenclCalls | None = None) -> None:
        super().__init__(queue, memory="buffer", _calls=calls)
        self._memory._on_host = False  # type: ignore[union-attr]  # of buffers


class WithoutCompiler(OpenclCalls):
    """Of a device that takes binaries only."""

    def address_kernel(self, context: object, device: object) -> None:
        """Return that there is none."""


@pytest.fixture(scope="module")
def queue() -> object:
    return cl.CommandQueue(OpenclBackend("opencl:0").context)


@pytest.fixture(scope="module")
def tell(queue: object) -> Callable[..., None]:
    program = cl.Program(OpenclBackend(queue).context, TELL).build()
    kernel: Callable[..., None] = program.tell
    return kernel


Tell = Callable[..., None]


def address_of(memory: Memory, queue: object, tell: Tell) -> int:
    out = cl.Buffer(OpenclBackend(queue).context, cl.mem_flags.READ_WRITE, 8)
    found = np.zeros(1, np.uint64)
    tell(queue, (1,), None, memory.native, out)
    cl.enqueue_copy(queue, found, out)
    return int(found[0])


def open_pool(
    kind: str, queue: object, *, pooling: bool = True, debug: bool = False
) -> Pool:
    if kind == "asked":
        return Pool(Asked(queue), pooling=pooling, debug=debug)
    backend = OpenclBackend(queue, memory=kind)
    return Pool(backend, pooling=pooling, debug=debug)


@pytest.mark.parametrize("alignment", [None, 1, 512, 4 * KIB, 64 * KIB, 1024 * KIB])
@pytest.mark.parametrize("mode", ["usual", "without pooling", "debug"])
@pytest.mark.parametrize("kind", ["buffer", "asked"])
def test_kernels_see_addresses_that_are_aligned_as_asked(
    kind: str,
    mode: str,
    alignment: int | None,
    queue: object,
    tell: Tell,
) -> None:
    pooling, debug = mode != "without pooling", mode == "debug"
    with open_pool(kind, queue, pooling=pooling, debug=debug) as pool:
        held: list[Memory] = []
        for nbytes in (1, 1000, 5000, 100_000, 3 << 20, 777):
            memory = pool.allocate(nbytes, alignment=alignment)
            memory.copy_from(bytes([len(held)]) * nbytes)
            held.append(memory)

            assert address_of(memory, queue, tell) % max(alignment or 0, 512) == 0
        for number, memory in enumerate(held):
            assert set(memory.tobytes()) == {number}
            memory.free()
        pool.check()


def test_slices_and_copies_lie_where_the_memory_does(queue: object, tell: Tell) -> None:
    with open_pool("buffer", queue) as pool, open_pool("buffer", queue) as other:
        memory, copied = pool.allocate(8 * KIB), other.allocate(8 * KIB)
        content = bytes(range(256)) * 32
        memory.copy_from(content)

        copied.copy_from(memory[KIB:])
        copied[KIB : 2 * KIB].fill(7)

        start = address_of(memory, queue, tell)
        assert address_of(memory[KIB:], queue, tell) == start + KIB
        found = copied.tobytes()
        assert found[:KIB] == content[KIB : 2 * KIB]
        assert found[KIB : 2 * KIB] == b"\x07" * KIB
        assert found[2 * KIB : 7 * KIB] == content[3 * KIB :]
        memory.free()
        copied.free()


def test_without_a_compiler_no_more_than_the_usual_alignment_is_promised(
    queue: object,
) -> None:
    with Pool(Asked(queue, WithoutCompiler())) as pool:
        pool.allocate(1000, alignment=512).free()

        with pytest.raises(MissingCapabilityError) as caught:
            pool.allocate(1000, alignment=4096)

        assert str(caught.value) == (
            "opencl:0 has no alignment of 4096 bytes: it does not tell where memory "
            "starts. Try: leave out alignment="
        )
        pool.check()


@pytest.mark.parametrize("kind", ["buffer", "fine", "coarse"])
@pytest.mark.parametrize("start", [0, 100, 512, 10_000])
def test_a_slice_of_no_bytes_is_no_native_object(
    kind: str, start: int, queue: object
) -> None:
    with open_pool(kind, queue) as pool:
        memory = pool.allocate(10_000)

        assert memory[start:start].native is None
        memory.free()
