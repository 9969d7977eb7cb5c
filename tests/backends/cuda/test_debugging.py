"""Debug mode on a device: guards are written by fills, and read back by copies."""

import pytest

from madl import MemoryCorruptionError, Pool
from madl.backends.cuda import CudaBackend
from madl.errors.damage import OVERRUN, UNDERRUN, USE_AFTER_FREE
from tests.backends.cuda.content import place
from tests.backends.cuda.test_streams import make_stream

MEMORIES = ("pages", "segments", "async", "pinned", "managed")


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize(
    ("first", "kind"), [(-1, UNDERRUN), (1000, OVERRUN), (0, USE_AFTER_FREE)]
)
def test_a_write_outside_is_found(memory: str, first: int, kind: str) -> None:
    backend = CudaBackend(0, memory=memory)
    pool = Pool(backend, debug=True)
    stream = make_stream()
    block = pool.allocate(1000, tag="weights", stream=stream)
    reservation, offset, _ = place(block)
    if kind == USE_AFTER_FREE:
        block.free()
        pool.allocate(8).free()
    backend.copy_from_host(reservation, offset + first, memoryview(b"\x07"))

    with pytest.raises(MemoryCorruptionError) as caught:
        pool.check()

    [damage] = caught.value.damages
    assert (damage.kind, damage.first, damage.tag) == (kind, first, "weights")
    if kind != USE_AFTER_FREE:
        block.free()
    pool.close()


@pytest.mark.parametrize("memory", MEMORIES)
def test_content_is_kept_between_the_guards(memory: str) -> None:
    content = bytes(range(256)) * 300
    with Pool(CudaBackend(0, memory=memory), debug=True) as pool:
        block = pool.allocate(len(content))
        assert block.address % 512 == 0
        block.copy_from(content)
        pool.check()

        assert block.tobytes() == content
        block.resize(2 * len(content))
        assert block.tobytes()[: len(content)] == content
        block.free()
        pool.trim()
