"""The default pools, the pool in use, and what is said of devices."""

import asyncio
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import madl
from madl import BackendCallError, BackendNotFoundError, Pool
from madl.pool.default import set_default_pool
from madl.sizes import ADDRESS_SPACE_NBYTES
from tests.fakes import FakeBackend, Fault
from tests.programs import run


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("sim") as pool:
        yield pool


def test_allocate_takes_from_the_default_pool_of_the_host() -> None:
    memory = madl.allocate("1 KiB")

    assert memory.pool is madl.default_pool()
    assert (memory.device, memory.nbytes) == ("cpu", 1024)


@pytest.mark.parametrize("device", [[], 3, None, FakeBackend()])
def test_a_default_pool_is_of_a_device_by_name(device: Any) -> None:  # noqa: ANN401  # wrong
    with pytest.raises(TypeError) as caught:  # the whole text is compared
        madl.default_pool(device)

    assert str(caught.value) == (
        "device must be a name such as 'cpu' or 'cuda:0', "
        f"got {device!r} ({type(device).__name__})"
    )


def test_a_device_has_one_default_pool() -> None:
    assert madl.default_pool("sim") is madl.default_pool("sim")


def test_all_names_of_a_device_mean_one_default_pool() -> None:
    assert madl.default_pool("cpu:0") is madl.default_pool("cpu")


def test_allocate_takes_from_the_default_pool_of_the_device() -> None:
    memory = madl.allocate(8, device="sim", tag="a", alignment=4096)

    assert memory.pool is madl.default_pool("sim")
    assert memory.tag == "a"


def test_a_closed_default_pool_is_replaced() -> None:
    closed = madl.default_pool("sim")
    closed.close()

    assert madl.default_pool("sim") is not closed
    assert madl.allocate(8, device="sim").nbytes == 8


def test_a_pool_can_be_made_the_default_until_it_is_closed(pool: Pool) -> None:
    before = madl.default_pool("sim:0")
    memory = before.allocate(8)

    set_default_pool(pool)

    assert madl.default_pool("sim") is madl.default_pool("sim:0") is pool
    assert memory.pool is before
    pool.close()
    assert madl.default_pool("sim") is not pool


def test_threads_that_come_first_at_once_get_one_pool() -> None:
    madl.default_pool("sim").close()
    start = threading.Barrier(8)
    found: list[Pool] = []

    def find() -> None:
        start.wait()
        found.append(madl.default_pool("sim"))

    threads = [threading.Thread(target=find) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(found)) == 1


def test_use_pool_sets_what_allocate_takes_from(pool: Pool) -> None:
    with madl.use_pool(pool) as used:
        memory = madl.allocate(8)

    assert used is pool
    assert memory.pool is pool
    assert madl.allocate(8).pool is madl.default_pool("cpu")


def test_use_pool_nests_and_ends_with_an_error(pool: Pool) -> None:
    inner = Pool("sim")
    with madl.use_pool(pool):
        with pytest.raises(KeyError), madl.use_pool(inner):
            raise KeyError

        assert madl.allocate(8).pool is pool


def test_use_pool_does_not_reach_other_threads(pool: Pool) -> None:
    found: list[object] = []
    with madl.use_pool(pool):
        thread = threading.Thread(target=lambda: found.append(madl.allocate(8).pool))
        thread.start()
        thread.join()

    assert found == [madl.default_pool("cpu")]


def test_use_pool_does_not_disturb_other_tasks(pool: Pool) -> None:
    async def inside() -> object:
        with madl.use_pool(pool):
            await asyncio.sleep(0)
            return madl.allocate(8).pool

    async def outside() -> object:
        await asyncio.sleep(0)
        return madl.allocate(8).pool

    async def both() -> list[object]:
        return list(await asyncio.gather(inside(), outside()))

    assert asyncio.run(both()) == [pool, madl.default_pool("cpu")]


def test_another_device_than_that_of_the_pool_in_use_is_refused(pool: Pool) -> None:
    with madl.use_pool(pool), pytest.raises(ValueError, match=r"^the pool") as caught:
        madl.allocate(8, device="cpu")

    assert str(caught.value) == (
        "the pool in use is of device 'sim', not 'cpu'; leave out device=, or "
        "allocate outside of use_pool"
    )
    assert pool.stats().allocation_count == 0


WHAT = "nbytes must be an int or a text such as '64 MiB', got"
TEXTS = "nbytes must be a byte count such as '64 MiB', '64MB' or '4096', got"


@pytest.mark.parametrize(
    ("nbytes", "error", "text"),
    [
        (-3, ValueError, "nbytes must not be negative, got -3"),
        (True, TypeError, f"{WHAT} True (bool)"),
        (1.0, TypeError, f"{WHAT} 1.0 (float)"),
        (math.nan, TypeError, f"{WHAT} nan (float)"),
        (None, TypeError, f"{WHAT} None (NoneType)"),
        (b"8", TypeError, f"{WHAT} b'8' (bytes)"),
        ("64 mb/s", ValueError, f"{TEXTS} '64 mb/s'"),
        ("-1 MiB", ValueError, f"{TEXTS} '-1 MiB'"),
        ("", ValueError, f"{TEXTS} ''"),
        ("0.3 B", ValueError, "nbytes must be a whole number of bytes, got '0.3 B'"),
        (
            ADDRESS_SPACE_NBYTES,
            OverflowError,
            f"nbytes must fit the address space, got {ADDRESS_SPACE_NBYTES} of at most "
            f"{ADDRESS_SPACE_NBYTES - 1}",
        ),
    ],
)
def test_what_is_no_byte_count_is_refused(
    nbytes: int, error: type[Exception], text: str
) -> None:
    before = madl.default_pool("cpu").stats()

    with pytest.raises(error) as caught:
        madl.allocate(nbytes)

    assert str(caught.value) == text
    after = madl.default_pool("cpu").stats()
    assert after.allocation_count == before.allocation_count
    assert after.committed_nbytes == before.committed_nbytes


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [("1.5 KiB", 1536), ("64MB", 64_000_000), ("4096", 4096), (np.int32(7), 7)],
)
def test_byte_counts_of_many_kinds_are_accepted(nbytes: int, expected: int) -> None:
    assert madl.allocate(nbytes).nbytes == expected


def test_sizes_that_fit_no_device_run_out_of_memory() -> None:
    with pytest.raises(madl.OutOfMemoryError):
        madl.allocate(ADDRESS_SPACE_NBYTES - 4096)


INSTALLED = (
    "kinds that madl knows: cpu, cuda, opencl, shared, sim. "
    "Try: `madl info`, or install the extra or plugin for that device"
)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("nvme:0", "no backend of kind 'nvme'"),
        ("sim:1", "devices of 'sim': sim"),
        ("CPU", "a device is named like 'cpu' or 'cuda:0'"),
        ("", "a device is named like 'cpu' or 'cuda:0'"),
    ],
)
def test_an_absent_device_says_why(device: str, reason: str) -> None:
    with pytest.raises(BackendNotFoundError) as caught:
        madl.allocate(8, device=device)

    assert str(caught.value) == f"no backend opens device {device!r} ({reason}); " + (
        INSTALLED
    )


def test_trim_gives_back_what_is_idle_in_every_pool() -> None:
    pools = [Pool("sim", page_size="64 KiB") for _ in range(2)]
    for pool in pools:
        pool.allocate("1 MiB").free()

    released = madl.trim()

    assert released >= 2 << 20
    assert [pool.stats().committed_nbytes for pool in pools] == [0, 0]


def test_trim_lets_each_pool_keep_some(pool: Pool) -> None:
    pool.allocate("8 MiB").free()

    madl.trim(keep="4 MiB")

    assert pool.stats().committed_nbytes == 4 << 20


def test_trim_passes_a_device_that_fails_and_says_so_in_the_end() -> None:
    backend = FakeBackend(total_nbytes=8 << 20)
    broken = Pool(backend)
    sound = [Pool("sim") for _ in range(2)]
    for each in (broken, *sound):
        each.allocate("1 MiB").free()
    backend.fail(Fault(1, lasts=True))

    with pytest.raises(BackendCallError, match="as the test wanted"):
        madl.trim()

    assert [each.stats().committed_nbytes for each in sound] == [0, 0]


def test_devices_are_those_that_open_here() -> None:
    devices = madl.devices()

    assert {"cpu", "sim"} <= set(devices)
    assert all(madl.Pool(device).device == device for device in devices)


def test_backends_are_the_kinds_that_are_claimed() -> None:
    assert {"cpu", "cuda", "opencl", "sim"} <= set(madl.backends())


COUNT_AFTER_FREE = """
import madl
pool = madl.Pool("sim")
held = [pool.allocate(8) for _ in range(2)]
held.pop().free()
held.append(pool.allocate(8))
print(pool.stats().backend_calls, pool.stats().cached_nbytes)
"""


@pytest.mark.parametrize(("setting", "expected"), [("on", "2 0"), ("off", "7 0")])
def test_madl_pool_off_passes_every_allocation_to_the_device(
    setting: str, expected: str
) -> None:
    status, printed, errors = run(COUNT_AFTER_FREE, MADL_POOL=setting)

    # Off: three times reserve and commit, and the release of the one that was freed.
    assert (status, printed.strip(), errors) == (0, expected, "")


def test_a_pool_in_use_is_a_pool() -> None:
    wrong: Any = "cpu"

    with (
        pytest.raises(TypeError, match="pool must be a Pool, got 'cpu'"),
        madl.use_pool(wrong),
    ):
        pass


def test_the_first_of_a_kind_may_be_named_with_its_number() -> None:
    with Pool("sim") as pool, madl.use_pool(pool):
        assert madl.allocate(5, device="sim:0").pool is pool
