"""PyTorch over memory of madl."""

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from madl import MissingCapabilityError, Pool
from madl.integrations.cuda_pool import FREE, MALLOC, RECORD_STREAM
from madl.integrations.torch import allocator, tensor
from tests.integration.peers import peer_or_skip
from tests.programs import endings

if TYPE_CHECKING:
    from torch import Tensor

torch = peer_or_skip("torch")


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cpu", limit="64 MiB") as pool:
        yield pool
        gc.collect()
        pool.check()
        assert pool.stats().live_nbytes == 0


def test_a_tensor_lies_in_the_memory_itself(pool: Pool) -> None:
    memory = pool.allocate(4096)

    made = tensor(memory, torch.float32, (2, 3))
    made[1, 2] = 7

    assert made.data_ptr() == memory.address
    assert memory.as_array("f4")[5] == 7
    assert (made.dtype, tuple(made.shape)) == (torch.float32, (2, 3))


def test_bytes_are_the_default(pool: Pool) -> None:
    made = tensor(pool.allocate(100))

    assert (made.dtype, tuple(made.shape)) == (torch.uint8, (100,))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "complex64", "bool"])
def test_types_that_numpy_lacks_are_types_too(name: str, pool: Pool) -> None:
    dtype = getattr(torch, name)

    made = tensor(pool.allocate(64), dtype)

    assert made.dtype == dtype
    assert made.numel() * made.itemsize == 64


@pytest.mark.parametrize("shape", [0, (0, 3), (3, 0)])
def test_no_elements_are_a_tensor_too(shape: int | tuple[int, ...], pool: Pool) -> None:
    made = tensor(pool.allocate(64), torch.float32, shape)

    assert made.numel() == 0
    assert tuple(made.shape) == ((shape,) if isinstance(shape, int) else shape)


def test_nothing_is_a_tensor_without_elements(pool: Pool) -> None:
    assert tensor(pool.allocate(0)).numel() == 0


def test_no_dimension_is_one_element(pool: Pool) -> None:
    assert tensor(pool.allocate(4), torch.float32, ()).fill_(3).item() == 3


def test_a_slice_is_a_tensor_where_it_lies(pool: Pool) -> None:
    memory = pool.allocate(64)

    assert tensor(memory[16:32]).data_ptr() == memory.address + 16


@pytest.mark.parametrize(
    ("nbytes", "shape", "message"),
    [
        (
            10,
            None,
            "10 bytes are no whole number of torch.float32, which takes 4; pass",
        ),
        (
            16,
            (2, 3),
            r"a tensor \(2, 3\) of torch.float32 needs 24 bytes, the memory has",
        ),
        (16, (-1,), r"dimensions must not be negative, got \(-1,\)"),
    ],
)
def test_what_does_not_fit_is_refused(
    nbytes: int, shape: tuple[int, ...] | None, message: str, pool: Pool
) -> None:
    with pytest.raises(ValueError, match=message):
        tensor(pool.allocate(nbytes), torch.float32, shape)


def test_a_dtype_of_another_library_is_refused(pool: Pool) -> None:
    name: Any = "float32"

    with pytest.raises(TypeError) as caught:
        tensor(pool.allocate(16), name)

    assert str(caught.value) == "dtype must be a torch.dtype, got 'float32'"


def test_dimensions_may_be_numpys(pool: Pool) -> None:
    memory = pool.allocate(16)

    assert tensor(memory, torch.float32, np.int64(3)).shape == (3,)
    assert tensor(memory, torch.float32, tuple(np.array([2, 2]))).shape == (2, 2)


def test_the_last_tensor_gives_the_block_back(pool: Pool) -> None:
    memory = pool.allocate(4096)
    part = tensor(memory, torch.float32)[5:10].view(5, 1)

    memory.free()

    assert pool.stats().live_nbytes == 4096
    assert pool.allocate(4096).address != part.data_ptr()
    del part
    assert pool.stats().live_nbytes == 0


def test_a_tensor_over_memory_cannot_outgrow_it(pool: Pool) -> None:
    made = tensor(pool.allocate(64))

    with pytest.raises(RuntimeError, match="not resizable"):
        made.resize_(100)


def test_dlpack_and_numpy_see_the_same_bytes(pool: Pool) -> None:
    memory = pool.allocate(64)

    imported = torch.from_dlpack(memory)
    wrapped = torch.from_numpy(memory.as_array())

    assert imported.data_ptr() == wrapped.data_ptr() == memory.address


def test_gradients_flow_through_a_tensor_over_memory(pool: Pool) -> None:
    made = tensor(pool.allocate(32), torch.float64).fill_(3).requires_grad_()

    (made * made).sum().backward()

    assert made.grad.tolist() == [6] * 4


MAKERS: dict[str, Callable[[Pool], "Tensor"]] = {
    "tensor": lambda pool: tensor(pool.allocate(64)),
    "from_dlpack": lambda pool: torch.from_dlpack(pool.allocate(64)),
    "from_numpy": lambda pool: torch.from_numpy(pool.allocate(64).as_array()),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_exception_in_flight_stays_what_it_is(
    make: Callable[[Pool], "Tensor"], pool: Pool
) -> None:
    def fail() -> None:
        made = make(pool)
        raise KeyError(f"mine, while {made.nbytes} bytes live")

    with pytest.raises(KeyError, match="mine, while 64 bytes live"):
        fail()
    with pytest.raises(RuntimeError, match="shape '\\[7\\]' is invalid"):
        make(pool).view(7)
    with pytest.raises(RuntimeError, match="Could not infer dtype of object"):
        torch.tensor([make(pool)[0], object()])
    with pytest.raises(TypeError):
        torch.empty(3).index_put((make(pool),), None)

    gc.collect()
    assert pool.stats().live_nbytes == 0


ALIVE_AT_EXIT = """
import builtins, sys, threading
import torch, madl
from madl.integrations.torch import tensor
kept = tensor(madl.allocate(1 << 20), torch.float32)
class Node: pass
node = Node()
node.itself, node.tensor = node, torch.from_dlpack(madl.allocate(1000))
builtins.kept = tensor(madl.allocate(1000))[5:10]
sys.kept = torch.from_numpy(madl.empty(1000))
pool = madl.Pool("cpu")
closed = tensor(pool.allocate(1000))
pool.close()
freed = madl.allocate(1000)
view = tensor(freed)
freed.free()
class Late:
    def __del__(self, tensor=tensor(madl.allocate(64))):
        tensor.fill_(1)
sys.late = Late()
local = threading.local()
local.tensor = tensor(madl.allocate(64))
"""


def test_a_program_ends_in_silence_with_tensors_alive() -> None:
    assert endings(ALIVE_AT_EXIT) == {(0, "", "")}


def test_pytorch_finds_the_functions_of_the_compiled_core() -> None:
    native = pytest.importorskip(
        "madl.native.device_pools", reason="madl is not compiled"
    )
    library = ctypes.CDLL(native.__file__)

    if hasattr(torch._C, "_cuda_customAllocator"):
        made = torch.cuda.memory.CUDAPluggableAllocator(native.__file__, MALLOC, FREE)
        record = ctypes.cast(library[RECORD_STREAM], ctypes.c_void_p).value
        made.allocator().set_record_stream_fn(record)
    else:  # it has looked both up by the time it misses its own
        with pytest.raises(AttributeError, match="_cuda_customAllocator"):
            torch.cuda.memory.CUDAPluggableAllocator(native.__file__, MALLOC, FREE)


def test_a_pytorch_without_cuda_says_so() -> None:
    if hasattr(torch._C, "_cuda_customAllocator"):
        pytest.skip("this PyTorch is built for CUDA")

    class Named:
        device = "cuda:0"

    with pytest.raises(MissingCapabilityError) as caught:
        allocator(Named())  # type: ignore[arg-type]  # nothing else is looked at

    assert str(caught.value) == (
        f"cuda:0 has no allocators in PyTorch {torch.__version__}, which is built "
        "without CUDA. Try: a build of PyTorch for CUDA"
    )


def test_arrays_of_numpy_and_tensors_share_a_block(pool: Pool) -> None:
    array = pool.allocate(64).as_array("f4")
    made = torch.from_numpy(array)
    np.multiply(array, 0, out=array)

    del array

    assert pool.stats().live_nbytes == 64
    assert made.sum().item() == 0
