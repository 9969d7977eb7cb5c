"""JAX sees host memory of madl without a copy: every block is aligned for it."""

import gc
from collections.abc import Iterator

import pytest

from madl import Pool
from tests.integration.peers import peer_or_skip
from tests.programs import endings

jax = peer_or_skip("jax")


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cpu", limit="64 MiB") as pool:
        yield pool
        gc.collect()
        pool.check()
        assert pool.stats().live_nbytes == 0


@pytest.mark.parametrize("nbytes", [1, 100, 513, 4096, 1 << 20])
def test_memory_is_imported_without_a_copy(nbytes: int, pool: Pool) -> None:
    held = [pool.allocate(nbytes) for _ in range(4)]

    arrays = [jax.dlpack.from_dlpack(memory) for memory in held]

    addresses = [memory.address for memory in held]
    assert [array.unsafe_buffer_pointer() for array in arrays] == addresses


def test_an_array_of_numpy_over_memory_is_imported_without_a_copy(pool: Pool) -> None:
    source = pool.allocate(4096).as_array("f4", (32, 32))
    source[:] = 3

    array = jax.dlpack.from_dlpack(source)

    assert array.unsafe_buffer_pointer() == source.ctypes.data
    assert (array.shape, str(array.dtype)) == ((32, 32), "float32")
    assert jax.numpy.sum(array) == 3 * 1024


def test_a_device_put_may_alias(pool: Pool) -> None:
    source = pool.allocate(4096).as_array("f4")

    array = jax.device_put(source, may_alias=True)

    assert array.unsafe_buffer_pointer() == source.ctypes.data


def test_a_block_goes_back_with_the_last_array(pool: Pool) -> None:
    memory = pool.allocate(4096)
    array = jax.dlpack.from_dlpack(memory)
    address = memory.address

    memory.free()
    gc.collect()

    assert pool.stats().live_nbytes == 4096
    assert pool.allocate(4096).address != address
    del array
    gc.collect()
    assert pool.stats().live_nbytes == 0


def test_a_donated_import_is_not_written_to(pool: Pool) -> None:
    source = pool.allocate(4096).as_array("f4")
    source[:] = 3
    twice = jax.jit(lambda array: array * 2, donate_argnums=0)

    result = twice(jax.dlpack.from_dlpack(source))

    assert float(result.sum()) == 6 * 1024
    assert float(source.sum()) == 3 * 1024


def test_where_jax_is_given_less_alignment_it_copies(pool: Pool) -> None:
    memory = pool.allocate(4096)

    array = jax.dlpack.from_dlpack(memory[16:])

    assert array.unsafe_buffer_pointer() != memory.address + 16


def test_an_exception_in_flight_stays_what_it_is(pool: Pool) -> None:
    def fail(array: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail(jax.dlpack.from_dlpack(pool.allocate(64)))


ALIVE_AT_EXIT = """
import builtins
import jax, madl
kept = jax.dlpack.from_dlpack(madl.allocate(1000))
builtins.kept = jax.dlpack.from_dlpack(madl.empty(1000, "f4"))
freed = madl.allocate(1000)
view = jax.dlpack.from_dlpack(freed)
freed.free()
"""


def test_a_program_ends_in_silence_with_arrays_alive() -> None:
    assert endings(ALIVE_AT_EXIT, JAX_PLATFORMS="cpu") == {(0, "", "")}
