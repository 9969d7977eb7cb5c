"""Limits of tags, of all pools of a device, and those that only warn."""

import asyncio
import contextlib
import threading
import warnings
from collections.abc import Callable, Generator, Iterator

import pytest

import madl
from madl import Memory, OutOfMemoryError, Pool, SoftLimitWarning
from madl.backends.sim import SimBackend
from madl.errors.report import TagLimit
from madl.pool.allocate import parts_of
from madl.stacks import Stack
from tests.fakes import FakeBackend, Fault
from tests.shortages import advice_of, check_sums, report_of

MIB = 1 << 20


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("sim") as pool:
        yield pool
        pool.check()


def test_a_tag_has_no_more_live_than_its_limit(pool: Pool) -> None:
    with madl.tag("weights", limit="8 MiB"):
        held = [pool.allocate(5 * MIB), pool.allocate(3 * MIB)]
        report = report_of(lambda: pool.allocate(1))

    check_sums(report)
    assert len(held) == 2
    assert report.tag_limit == TagLimit("weights", 8 * MIB, 8 * MIB)
    assert advice_of(report) == (
        "free what tag 'weights' holds, or give the tag a limit of 8.1 MiB."
    )
    assert "  over        the limit of tag 'weights': 8.0 MiB of 8.0 MiB\n" in str(
        OutOfMemoryError(report)
    )


def test_what_is_freed_may_be_had_again(pool: Pool) -> None:
    with madl.tag("weights", limit="8 MiB"):
        for _ in range(10):
            pool.allocate(8 * MIB)


def test_nothing_else_is_behind_the_error_of_a_tag(pool: Pool) -> None:
    with madl.tag("weights", limit="8 MiB"):
        held = pool.allocate(8 * MIB)
        for nbytes in (1, 9 * MIB):
            with pytest.raises(OutOfMemoryError) as caught:
                pool.allocate(nbytes)
            assert caught.value.__context__ is None

    assert held.nbytes == 8 * MIB


def test_padding_and_pages_do_not_count_for_a_tag(pool: Pool) -> None:
    with madl.tag("small", limit=10):
        held = [pool.allocate(1) for _ in range(10)]

    assert pool.stats().tags["small"].live_nbytes == len(held)


def test_tags_below_count_for_those_above(pool: Pool) -> None:
    with madl.tag("model", limit="8 MiB"):
        with madl.tag("encoder"):
            held = [pool.allocate(5 * MIB)]
        with madl.tag("decoder", limit="7 MiB"):
            report = report_of(lambda: pool.allocate(4 * MIB))
        held.append(pool.allocate(3 * MIB))

    assert len(held) == 2
    assert report.tag_limit == TagLimit("model", 8 * MIB, 5 * MIB)


def test_a_refusal_by_a_tag_above_leaves_the_one_below_as_it_was(pool: Pool) -> None:
    with madl.tag("model", limit="2 MiB"), madl.tag("encoder", limit="2 MiB"):
        held = pool.allocate(MIB)
        for _ in range(3):
            report_of(lambda: pool.allocate(2 * MIB))
        held_too = pool.allocate(MIB)

    assert held.nbytes == held_too.nbytes
    assert pool.stats().allocation_count == 2


def test_of_the_limits_in_the_way_the_one_that_is_passed_most_is_named(
    pool: Pool,
) -> None:
    with madl.tag("model", limit="10 MiB"), madl.tag("encoder", limit="6 MiB"):
        held = pool.allocate(5 * MIB)
        too_large = report_of(lambda: pool.allocate(7 * MIB))
        both = report_of(lambda: pool.allocate(6 * MIB))
        del held

    assert too_large.tag_limit == TagLimit("model/encoder", 6 * MIB, 5 * MIB)
    assert advice_of(too_large).startswith("a smaller request, or give the tag")
    assert both.tag_limit == TagLimit("model/encoder", 6 * MIB, 5 * MIB)


def test_other_pools_of_a_device_count_for_a_tag() -> None:
    device = SimBackend()
    first, second, elsewhere = Pool(device), Pool(device), Pool(SimBackend())
    with madl.tag("weights", limit=MIB):
        held = [first.allocate(MIB // 2), elsewhere.allocate(MIB)]
        report = report_of(lambda: second.allocate(MIB))

    assert len(held) == 2
    assert report.tag_limit == TagLimit("weights", MIB, MIB // 2)


def test_what_the_tag_had_before_the_limit_counts(pool: Pool) -> None:
    held = pool.allocate(6 * MIB, tag="weights")

    with madl.tag("weights", limit="8 MiB"):
        report = report_of(lambda: pool.allocate(3 * MIB))
    after = pool.allocate(3 * MIB, tag="weights")

    assert (held.nbytes, after.nbytes) == (6 * MIB, 3 * MIB)
    assert report.tag_limit is not None


def test_another_tag_inside_of_the_block_is_not_bounded(pool: Pool) -> None:
    with madl.tag("weights", limit="8 MiB"):
        assert pool.allocate(9 * MIB, tag="other").tag == "other"
        assert pool.allocate(MIB, tag="weights/a").tag == "weights/a"
        report_of(lambda: pool.allocate(9 * MIB, tag="weights/a"))


def test_more_than_the_limit_of_a_tag_fails_at_once(pool: Pool) -> None:
    asked: list[int] = []
    pool.on_out_of_memory(asked.append)

    with madl.tag("weights", limit="8 MiB"):
        report = report_of(lambda: pool.allocate(9 * MIB))

    assert (asked, report.tried) == ([], ())
    assert advice_of(report) == (
        "a smaller request, or give the tag a limit of 9.0 MiB."
    )


def test_reclaimers_make_room_under_the_limit_of_a_tag(pool: Pool) -> None:
    with madl.tag("cache", limit="8 MiB"):
        held = [pool.allocate(8 * MIB)]
        pool.on_out_of_memory(lambda nbytes: held.clear())

        assert pool.allocate(MIB).nbytes == MIB


def test_the_report_of_a_tag_says_what_was_tried(pool: Pool) -> None:
    def give_some(nbytes: int) -> None:
        held.pop()

    pool.on_out_of_memory(give_some)
    with madl.tag("cache", limit="8 MiB"):
        held = [pool.allocate(7 * MIB), pool.allocate(MIB)]
        report = report_of(lambda: pool.allocate(2 * MIB))

    name = f"reclaimer {give_some.__qualname__}"
    assert report.tried == ((name, MIB), ("garbage collection", 0))


@pytest.mark.parametrize("fails", ["device", "listener", "tag"])
def test_a_failure_gives_back_what_was_claimed(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def allocated(
            self, nbytes: int, tag: str | None, stream_number: int, stack: Stack
        ) -> int:
            raise KeyError

        def freed(self, allocation_id: int) -> None:
            raise AssertionError("nothing was allocated")

    pool = Pool(SimBackend(total_nbytes=4 * MIB))
    with madl.tag("a", limit="100 MiB"):
        if fails == "listener":
            monkeypatch.setattr("madl.pool.tracking.listeners", [Failing()])
        for _ in range(3):
            with pytest.raises((OutOfMemoryError, KeyError)):
                pool.allocate(60 * MIB if fails != "tag" else 101 * MIB)
        monkeypatch.undo()
        assert pool.allocate(MIB).nbytes == MIB

    assert pool.stats().tags["a"].live_nbytes == 0
    assert parts_of(pool).growth.budget.device.tag("a").live_nbytes == 0


def test_a_view_keeps_what_it_claims() -> None:
    pool = Pool("cpu")
    with madl.tag("array", limit=4096):
        memory = pool.allocate(4096)
        array = memory.as_array()
        memory.free()
        report_of(lambda: pool.allocate(1))
        del array
        assert pool.allocate(4096).nbytes == 4096


def test_limits_of_tags_hold_in_their_own_thread_and_task_only(pool: Pool) -> None:
    def outside() -> None:
        found.append(pool.allocate(2 * MIB, tag="a"))

    async def work(limit: int | None) -> Memory:
        with madl.tag("b", limit=limit):
            await asyncio.sleep(0)
            return pool.allocate(MIB)

    async def both() -> list[Memory | BaseException]:
        tasks = (work(None), work(MIB // 2))
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    found: list[Memory] = []
    with madl.tag("a", limit=MIB):
        thread = threading.Thread(target=outside)
        thread.start()
        thread.join()

    first, second = asyncio.run(both())
    assert len(found) == 1
    assert isinstance(first, Memory)
    assert isinstance(second, OutOfMemoryError)


def test_threads_never_pass_the_limit_of_a_tag_together() -> None:
    pool = Pool("sim")
    most = [0]

    def work() -> None:
        with madl.tag("shared", limit=100):
            for _ in range(300):
                try:
                    memory = pool.allocate(30)
                except OutOfMemoryError:
                    continue
                most[0] = max(
                    most[0],
                    parts_of(pool).growth.budget.device.tag("shared").live_nbytes,
                )
                memory.free()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 0 < most[0] <= 100
    assert pool.stats().tags["shared"].live_nbytes == 0


def test_tags_of_generators_end_in_any_order(pool: Pool) -> None:
    def work(name: str) -> Generator[str | None, None, None]:
        with madl.tag(name):
            yield pool.allocate(8).tag
            yield pool.allocate(8).tag

    first, second = work("a"), work("b")

    assert [next(first), next(second)] == ["a", "a/b"]
    first.close()
    assert next(second) == "b"
    second.close()
    assert pool.allocate(8).tag is None


def test_pools_of_generators_end_in_any_order() -> None:
    def work(pool: Pool) -> Generator[None, None, None]:
        with madl.use_pool(pool):
            yield

    one, two = Pool("sim"), Pool("sim")
    first, second = work(one), work(two)
    next(first), next(second)

    first.close()
    assert madl.allocate(8).pool is two
    second.close()
    assert madl.allocate(8).device == "cpu"


def test_a_tag_may_end_in_another_context(pool: Pool) -> None:
    block = madl.tag("a")
    asyncio.run(_enter(block))

    block.__exit__(None, None, None)

    assert pool.allocate(8).tag is None


async def _enter(block: "contextlib.AbstractContextManager[str]") -> None:
    block.__enter__()


@pytest.mark.parametrize("commits", [True, False])
def test_all_pools_of_a_device_share_its_limit(commits: bool) -> None:
    device = SimBackend(commits=commits)
    first, second = Pool(device), Pool(device, limit="40 MiB")
    madl.limit_device(device, "32 MiB")
    held = [first.allocate(20 * MIB)]

    report = report_of(lambda: second.allocate(20 * MIB))

    check_sums(report)
    assert report.device_limit_nbytes == 32 * MIB
    assert report.is_over_device_limit
    assert advice_of(report) == (
        "free some memory, or a limit of the device of 40.0 MiB."
    )
    held.append(second.allocate(12 * MIB))
    assert device.committed_nbytes == 32 * MIB
    madl.limit_device(device, "40 MiB")
    held.clear()
    first.trim()
    assert second.allocate(20 * MIB).nbytes == 20 * MIB


def test_a_limit_of_the_device_counts_what_was_there_before() -> None:
    device = FakeBackend(total_nbytes=MIB)
    first, second = Pool(device), Pool(device)
    held = first.allocate(MIB // 2)

    madl.limit_device(device, MIB // 2)

    report_of(lambda: second.allocate(512))
    held.free()
    first.close()
    assert second.allocate(MIB // 2).nbytes == MIB // 2


def test_what_another_pool_keeps_under_a_shared_limit_is_to_be_trimmed() -> None:
    device = SimBackend()
    first, second = Pool(device), Pool(device)
    madl.limit_device(device, "32 MiB")
    first.allocate(20 * MIB).free()

    report = report_of(lambda: second.allocate(20 * MIB))

    assert advice_of(report) == (
        "trim() of other pools of sim: they keep 20.0 MiB that nobody uses."
    )
    first.trim()
    assert second.allocate(20 * MIB).nbytes == 20 * MIB


def test_a_request_over_the_limit_of_the_device_fails_at_once() -> None:
    device = SimBackend()
    pool = Pool(device)
    madl.limit_device(device, MIB)
    asked: list[int] = []
    pool.on_out_of_memory(asked.append)

    report = report_of(lambda: pool.allocate(2 * MIB))

    assert (asked, report.tried) == ([], ())
    assert advice_of(report).startswith("a limit of at least 2.0 MiB")


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("fail_on_call", range(1, 8))
def test_a_device_that_fails_gives_back_what_was_claimed(
    commits: bool, fail_on_call: int
) -> None:
    device = FakeBackend(commits=commits, fault=Fault(fail_on_call))
    pool = Pool(device)
    held: list[Memory] = []
    for nbytes in (40_000, 80_000, 20_000):
        try:
            held.append(pool.allocate(nbytes))
        except madl.MadlError:
            continue

    budget = parts_of(pool).growth.budget
    assert budget.device.committed_nbytes == budget.committed_nbytes
    pool.check()
    held.clear()
    with contextlib.suppress(madl.MadlError):
        pool.close()
    assert budget.device.committed_nbytes == budget.committed_nbytes


def test_threads_never_pass_the_limit_of_a_device_together() -> None:
    device = FakeBackend(total_nbytes=MIB)
    madl.limit_device(device, MIB // 4)
    pools = [Pool(device) for _ in range(4)]

    def work(pool: Pool) -> None:
        for _ in range(40):
            try:
                pool.allocate(50_000)
            except OutOfMemoryError:
                continue
            pool.trim()

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    budget = parts_of(pools[0]).growth.budget.device
    assert budget.committed_nbytes == sum(p.stats().committed_nbytes for p in pools)


def soft_warnings(work: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    assert {warning.category for warning in caught} <= {SoftLimitWarning}
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


def test_a_soft_limit_warns_once_each_time_it_is_passed() -> None:
    pool = Pool("sim", limit=8 * MIB, soft_limit=4 * MIB)
    held: list[Memory] = []

    def work() -> None:
        for _ in range(2):
            held.extend(pool.allocate(MIB) for _ in range(8))
            held.clear()
            pool.trim()

    assert soft_warnings(work) == ["sim: a pool passed the soft limit of 4.0 MiB"] * 2


def test_a_soft_limit_of_a_device_is_of_all_its_pools() -> None:
    device = SimBackend()
    first, second = Pool(device), Pool(device)
    madl.limit_device(device, None, soft_limit="4 MiB")
    held: list[Memory] = []

    def work() -> None:
        held.extend(pool.allocate(3 * MIB) for pool in (first, second))

    assert soft_warnings(work) == [
        "sim: all pools together passed the soft limit of 4.0 MiB"
    ]


def test_a_soft_limit_of_a_tag_is_of_its_live_bytes(pool: Pool) -> None:
    held: list[Memory] = []

    def work() -> None:
        with madl.tag("cache", soft_limit=1000):
            held.extend(pool.allocate(600) for _ in range(3))

    assert soft_warnings(work) == [
        "sim: tag 'cache', with 1.2 KiB live, passed the soft limit of 1000 B"
    ]


@pytest.mark.filterwarnings("error::madl.SoftLimitWarning")
@pytest.mark.parametrize("limits", ["pool", "tag"])
def test_a_warning_that_is_an_error_changes_nothing(limits: str) -> None:
    pool = Pool("sim", soft_limit=MIB if limits == "pool" else None)

    with (
        madl.tag("a", soft_limit=MIB if limits == "tag" else None),
        pytest.raises(SoftLimitWarning),
    ):
        pool.allocate(2 * MIB)

    stats = pool.stats()
    assert (stats.live_nbytes, stats.cached_nbytes) == (0, 0)
    assert parts_of(pool).growth.budget.device.tag("a").live_nbytes == 0
    pool.check()


@pytest.mark.parametrize("limit", [MIB, None])
def test_a_name_that_reaches_no_pool_is_refused(limit: int | None) -> None:
    with pytest.raises(ValueError, match="would reach no pool") as caught:
        madl.limit_device("sim", limit)

    assert str(caught.value) == (
        "a limit of 'sim' would reach no pool: each simulated device is one of its "
        "own. Try: backend = SimBackend(), Pool(backend) and limit_device(backend, ...)"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pool("sim", limit=4096, soft_limit=4096),
        lambda: madl.limit_device(SimBackend(), 4096, soft_limit=4097),
        lambda: madl.tag("a", limit=4096, soft_limit=5000).__enter__(),
    ],
)
def test_a_soft_limit_that_could_not_warn_is_refused(
    make: Callable[[], object],
) -> None:
    with pytest.raises(ValueError, match=r"^soft_limit must be below the limit of 40"):
        make()
