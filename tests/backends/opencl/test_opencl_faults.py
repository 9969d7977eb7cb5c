"""Any call to pyopencl may fail: the right error, nothing leaked, the pool usable."""

from typing import Any

import pytest

from madl import BackendCallError, MadlError, OutOfMemoryError, Pool
from madl.backends.opencl import OpenclBackend
from tests.backends.opencl.device import pyopencl_or_skip
from tests.backends.opencl.faults import (
    ALLOCATION_FAILURE,
    INVALID_VALUE,
    OUT_OF_HOST_MEMORY,
    OUT_OF_RESOURCES,
    FaultyCalls,
)

cl = pyopencl_or_skip()
pytestmark = pytest.mark.opencl

MIB = 1 << 20
MOST_CALLS = 200


def open_pool(
    memory: str, calls: FaultyCalls, *, touches: bool = False
) -> tuple[Pool, Any]:
    backend = OpenclBackend("opencl:0", memory=memory, _calls=calls)  # type: ignore[arg-type]  # in its place
    if touches:  # as on a device that is no CPU
        backend._memory._on_host = False  # type: ignore[union-attr]  # of buffers
    return Pool(backend), backend


def use(pool: Pool, queue: object) -> None:
    """Call everything that a pool of this device can do."""
    backend: Any = pool._backend.backend
    small, large = pool.allocate(1000), pool.allocate(3 * MIB)
    try:
        small.copy_from(bytes(range(250)) * 4)
        large.fill(7)
        assert small.tobytes() == bytes(range(250)) * 4
        large.copy_from(small)
        large.resize(5 * MIB)
        assert large[:1000].tobytes() == small.tobytes()
        event = backend.record(queue)
        backend.wait(queue, event)
        backend.is_done(event)
        backend.synchronize(event)
        assert small.native is not None
        large.free()
        pool.trim()
    finally:
        if not large.is_freed:
            large.free()
        small.free()
    pool.trim()


def errors_of(pool: Pool, queue: object) -> list[MadlError]:
    """Return the error of a use in which a call fails; none if the pool got over it."""
    try:
        use(pool, queue)
    except MadlError as error:
        return [error]
    return []


@pytest.mark.parametrize("touches", [False, True], ids=["", "touches"])
@pytest.mark.parametrize("memory", ["buffer", "fine", "coarse"])
@pytest.mark.parametrize("code", [OUT_OF_HOST_MEMORY, INVALID_VALUE])
def test_whichever_call_fails_nothing_is_leaked_and_the_pool_goes_on(
    memory: str, code: int, touches: bool
) -> None:
    expected = OutOfMemoryError if code == OUT_OF_HOST_MEMORY else BackendCallError
    calls = FaultyCalls(code=code)
    pool, backend = open_pool(memory, calls, touches=touches and memory == "buffer")
    queue = cl.CommandQueue(backend.context)
    use(pool, queue)
    seen = set()
    for number in range(1, MOST_CALLS):
        calls.fail_on(number)
        raised = {type(error) for error in errors_of(pool, queue)}
        if not calls.failed:
            break
        assert raised <= {expected}, calls.failed
        seen.add(calls.failed)
        calls.fail_on(0)
        pool.check()
        assert pool.stats().live_nbytes == 0, calls.failed
        pool.trim()  # what a failed release has left
        assert calls.taken == [], calls.failed
        use(pool, queue)
    else:
        pytest.fail(f"more than {MOST_CALLS} calls")

    assert {"release", "mark", "flush", "hold_back", "status", "wait", "copy"} <= seen
    pool.close()
    assert calls.taken == []


def test_a_backend_without_a_queue_is_not_made() -> None:
    calls = FaultyCalls(code=OUT_OF_RESOURCES)
    calls.fail_on(1)

    with pytest.raises(BackendCallError) as caught:
        open_pool("buffer", calls)

    assert str(caught.value) == (
        "opencl:0: cannot make a command queue: cl_create_queue failed with -5 "
        "(CL_OUT_OF_RESOURCES)"
    )


@pytest.mark.parametrize(
    "code", [ALLOCATION_FAILURE, OUT_OF_RESOURCES, OUT_OF_HOST_MEMORY]
)
@pytest.mark.parametrize("call", ["create_buffer", "fill_buffer", "wait"])
def test_a_device_that_refuses_memory_is_out_of_memory(code: int, call: str) -> None:
    calls = FaultyCalls(code=code)
    pool, _ = open_pool("buffer", calls, touches=True)
    calls.always_fail(call)

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(1000)

    native = caught.value.report.native
    assert native is not None
    assert (caught.value.device, caught.value.requested) == ("opencl:0", 1000)
    assert native.code == code
    assert native.function == f"cl_{call}"
    assert native.text == f"CL_{cl.status_code.to_string(code)}"
    assert calls.taken == []
    calls.always_fail("")
    pool.allocate(1000).free()


def test_resources_that_a_copy_lacks_are_not_memory() -> None:
    calls = FaultyCalls(code=OUT_OF_RESOURCES)
    pool, _ = open_pool("buffer", calls)
    memory = pool.allocate(8)
    calls.fail_on(1)

    with pytest.raises(BackendCallError) as caught:
        memory.copy_from(b"12345678")

    assert str(caught.value) == (
        "opencl:0: cannot copy 8 bytes to the device: cl_copy failed with -5 "
        "(CL_OUT_OF_RESOURCES)"
    )
