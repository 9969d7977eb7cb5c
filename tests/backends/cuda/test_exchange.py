"""Other libraries see CUDA memory itself: by DLPack, and by CUDA's array interface."""

import gc
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from madl import FreedMemoryError, MissingCapabilityError, Pool
from madl.backends.cuda import CudaBackend
from madl.pool.allocate import parts_of
from tests.backends.cuda.content import place
from tests.backends.cuda.emulator import Emulator
from tests.backends.cuda.test_streams import make_stream

core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")
utils = pytest.importorskip("cuda.core.utils", reason="cuda-core is not installed")

LEGACY = 1


@pytest.fixture(autouse=True)
def _context() -> None:
    """Importers look at the memory, for which they need a context."""
    core.Device(0).set_current()


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cuda:0") as pool:
        yield pool
        pool.check()


def test_the_array_interface_tells_bytes_at_an_address(pool: Pool) -> None:
    memory = pool.allocate(1000)

    assert memory.__cuda_array_interface__ == {
        "version": 3,
        "shape": (1000,),
        "typestr": "|u1",
        "data": (memory.address, False),
        "strides": None,
        "stream": LEGACY,
    }


def test_the_array_interface_names_the_stream_that_owns_the_memory(pool: Pool) -> None:
    stream = make_stream()

    memory = pool.allocate(1000, stream=stream)

    assert memory.__cuda_array_interface__["stream"] == stream
    assert memory[8:16].__cuda_array_interface__["stream"] == stream


def test_no_bytes_lie_at_address_0(pool: Pool) -> None:
    assert pool.allocate(0).__cuda_array_interface__["data"] == (0, False)


def test_freed_memory_has_no_array_interface(pool: Pool) -> None:
    memory = pool.allocate(8)
    memory.free()

    with pytest.raises(FreedMemoryError):
        memory.__cuda_array_interface__  # noqa: B018  # reading it is the test


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_other_memory_has_no_array_interface(device: str) -> None:
    memory = Pool(device).allocate(8)

    assert not hasattr(memory, "__cuda_array_interface__")


def test_the_array_interface_is_imported_without_a_copy(pool: Pool) -> None:
    memory = pool.allocate(1000)

    view = utils.StridedMemoryView.from_cuda_array_interface(memory, stream_ptr=-1)

    assert (view.ptr, view.shape, view.device_id) == (memory.address, (1000,), 0)


@pytest.mark.parametrize(
    ("memory", "device"),
    [("pages", (2, 0)), ("segments", (2, 0)), ("pinned", (3, 0)), ("managed", (13, 0))],
)
def test_dlpack_calls_the_device_what_it_is(
    memory: str, device: tuple[int, int]
) -> None:
    with Pool(CudaBackend(0, memory=memory)) as pool:
        block = pool.allocate(64)

        assert block.__dlpack_device__() == device
        block.free()


@pytest.mark.parametrize("memory", ["pages", "segments", "async", "pinned", "managed"])
@pytest.mark.parametrize("nbytes", [0, 4])
def test_dlpack_has_the_elements_that_the_array_interface_has(
    memory: str, nbytes: int
) -> None:
    with Pool(CudaBackend(0, memory=memory)) as pool:
        block = pool.allocate(nbytes)

        view = utils.StridedMemoryView.from_dlpack(block, stream_ptr=-1)

        told = block.__cuda_array_interface__["typestr"]
        assert (view.dtype, view.shape) == (np.dtype(told), (nbytes,))
        assert view.dtype == np.uint8
        del view
        block.free()


@pytest.mark.parametrize("memory", ["pinned", "managed"])
def test_numpy_reads_bytes_by_dlpack(memory: str) -> None:
    with Pool(CudaBackend(0, memory=memory)) as pool:
        block = pool.allocate(4)
        block.fill(200)

        array = np.from_dlpack(block)

        assert array.dtype == np.uint8
        assert array.tolist() == [200] * 4
        del array
        block.free()


class OldView:
    """What older ones of cuda.core have."""


def test_a_cuda_core_that_is_too_old_is_told(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utils, "StridedMemoryView", OldView)

    with pytest.raises(MissingCapabilityError) as caught:
        pool.allocate(64).__dlpack__()

    assert str(caught.value) == (
        f"cuda:0 has no DLPack with cuda.core {core.__version__}. "
        "Try: pip install --upgrade cuda-core"
    )


def test_dlpack_is_imported_without_a_copy(pool: Pool) -> None:
    memory = pool.allocate(1000)

    view = utils.StridedMemoryView.from_dlpack(memory[8:16], stream_ptr=-1)

    assert (view.ptr, view.shape) == (memory.address + 8, (8,))


def test_an_importer_keeps_the_block_whatever_is_freed(pool: Pool) -> None:
    memory = pool.allocate(1000)
    view = utils.StridedMemoryView.from_dlpack(memory, stream_ptr=-1)

    memory.free()
    gc.collect()

    assert memory.is_freed
    assert pool.stats().live_nbytes == 1000
    assert pool.allocate(1000).address != view.ptr
    del view
    gc.collect()
    assert pool.stats().live_nbytes == 0


def test_the_cpu_sees_no_more_of_what_was_exported(pool: Pool) -> None:
    with Pool("cpu") as host:
        host.allocate(8).as_array("uint8")  # from now on NumPy is asked at once
    memory = pool.allocate(8)
    capsule = memory.__dlpack__(stream=-1)

    for shape in (None, 0, 8):
        with pytest.raises(MissingCapabilityError, match="cuda:0 has no host access"):
            memory.as_array("uint8", shape)
    del capsule


def test_a_capsule_that_nobody_imports_gives_the_block_back(pool: Pool) -> None:
    memory = pool.allocate(1000)
    capsule = memory.__dlpack__(max_version=(1, 0))
    memory.free()

    assert pool.stats().live_nbytes == 1000
    del capsule
    assert pool.stats().live_nbytes == 0


def test_memory_that_was_imported_can_be_resized_again(pool: Pool) -> None:
    memory = pool.allocate(1000)
    capsule = memory.__dlpack__()

    with pytest.raises(ValueError, match="cannot be resized while arrays"):
        memory.resize(2000)
    del capsule
    memory.resize(2000)

    assert memory.nbytes == 2000


def test_pinned_memory_is_in_the_hands_of_both_sides() -> None:
    with Pool("cuda_pinned:0") as pool:
        memory = pool.allocate(64)
        capsule = memory.__dlpack__()
        array = memory.as_array()
        memory.free()

        assert pool.stats().live_nbytes == 64
        del capsule
        assert pool.stats().live_nbytes == 64
        del array
        assert pool.stats().live_nbytes == 0


def test_no_bytes_are_on_no_device(pool: Pool) -> None:
    assert pool.allocate(0).__dlpack_device__() == (1, 0)


def test_an_importers_work_comes_after_what_is_queued(
    pool: Pool, emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    producer, importer = make_stream(), make_stream()
    memory = pool.allocate(64, stream=producer)
    copied = pool.allocate(64, stream=importer)
    backend: Any = parts_of(pool).backend.backend
    memory.fill(0)

    backend.fill(*place(memory), 7, stream=producer)
    capsule = memory.__dlpack__(stream=importer)
    source, source_offset, nbytes = place(memory)
    target, offset, _ = place(copied)
    backend.copy_inside(source, source_offset, target, offset, nbytes, stream=importer)
    backend.synchronize(backend.record(importer))

    assert copied.tobytes() == b"\x07" * 64
    del capsule


def test_a_block_is_not_reused_while_an_importers_work_is_queued(
    pool: Pool, emulator: Emulator
) -> None:
    emulator.set(lazy=1)
    importer = make_stream()
    memory = pool.allocate(64)
    address = memory.address
    capsule = memory.__dlpack__(stream=importer)
    backend: Any = parts_of(pool).backend.backend
    backend.fill(*place(memory), 7, stream=importer)

    del capsule
    memory.free()

    assert pool.allocate(64).address != address
    emulator.run()
    pool.trim()
    assert pool.allocate(64).address == address


def test_an_importer_may_see_to_the_order_itself(
    pool: Pool, emulator: Emulator
) -> None:
    memory = pool.allocate(64)
    calls = emulator.count("events")

    capsule = memory.__dlpack__(stream=-1)

    assert emulator.count("events") == calls
    del capsule


def test_an_exception_in_flight_stays_what_it_is(pool: Pool) -> None:
    with pytest.raises(KeyError, match="mine"):
        fail(utils.StridedMemoryView.from_dlpack(pool.allocate(64), stream_ptr=-1))

    gc.collect()
    assert pool.stats().live_nbytes == 0


def fail(view: object) -> None:
    raise KeyError("mine")


def test_without_cuda_core_it_says_what_to_install(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)

    with pytest.raises(MissingCapabilityError) as caught:
        pool.allocate(64).__dlpack__()

    assert str(caught.value) == (
        "cuda:0 has no DLPack without cuda.core. Try: pip install cuda-core"
    )
