"""Why a request could not be placed: the figures add up, and the advice is right."""

import json
import pickle
import threading
from collections.abc import Iterator

import pytest

import madl
from madl import OutOfMemoryError, OutOfMemoryReport, Pool
from madl.backends.protocol import MemoryInfo, Reservation
from madl.backends.sim import SimBackend
from madl.errors.report import Group, NativeFailure, OtherPools
from madl.sizes import ADDRESS_SPACE_NBYTES
from tests.fakes import FakeBackend
from tests.shortages import advice_of, check_sums, fill, leak, report_of

MIB = 1 << 20
REFUSED = NativeFailure("sim_commit", 12, "no more")


@pytest.fixture(params=["cpu", "sim", "segments"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    device = SimBackend(commits=False) if request.param == "segments" else request.param
    with Pool(device, limit=64 * MIB) as pool:
        yield pool


def test_the_error_for_the_largest_request_can_be_read() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        Pool("sim").allocate(ADDRESS_SPACE_NBYTES - 1)

    assert str(caught.value).startswith("sim: cannot place ")


def test_a_limit_that_is_too_low_says_which_would_do(pool: Pool) -> None:
    held = [pool.allocate(nbytes * MIB, tag="weights") for nbytes in (30, 20, 3)]

    report = report_of(lambda: pool.allocate(40 * MIB + 1))

    check_sums(report)
    enough = advice_of(report).partition("a limit of ")[2].rstrip(".")
    with Pool(pool._backend.backend, limit=enough) as larger:
        again = [larger.allocate(memory.nbytes) for memory in held]
        assert larger.allocate(40 * MIB + 1).nbytes + sum(m.nbytes for m in again)


def test_a_request_larger_than_the_limit_says_so(pool: Pool) -> None:
    report = report_of(lambda: pool.allocate(65 * MIB))

    check_sums(report)
    assert advice_of(report).startswith("a limit of at least ")
    assert report.tried == ()


def test_free_memory_in_pieces_is_told_from_too_little(pool: Pool) -> None:
    held = fill(pool, MIB)
    del held[::2]

    report = report_of(lambda: pool.allocate(16 * MIB))

    check_sums(report)
    assert report.fragmentation_ratio > 0.9
    assert advice_of(report).startswith("enough is free, but in p")


def test_smaller_pages_are_advised_only_where_they_help() -> None:
    def run(page_size: int | str) -> OutOfMemoryReport | None:
        with Pool("sim", limit=64 * MIB, page_size=page_size) as pool:
            held = [pool.allocate(MIB) for _ in range(64)]
            del held[::2]
            try:
                pool.allocate(16 * MIB)
            except OutOfMemoryError as error:
                return error.report
            return None

    report = run(4 * MIB)

    assert report is not None
    check_sums(report)
    assert report.enough_page_nbytes == MIB
    assert "page_size='1.0 MiB' lets the pool use it" in advice_of(report)
    assert run("1.0 MiB") is None


def test_pieces_smaller_than_any_page_have_no_such_advice() -> None:
    with Pool("sim", limit=MIB, page_size=4096) as pool:
        held = [pool.allocate(2048) for _ in range(512)]
        del held[::2]

        report = report_of(lambda: pool.allocate(MIB // 4))

    check_sums(report)
    assert report.enough_page_nbytes is None
    assert advice_of(report) == (
        "enough is free, but in pieces of 2.0 KiB at most: free long-lived memory "
        "first, or allocate the large blocks earlier."
    )


def test_a_leak_is_named_by_what_stays_live(pool: Pool) -> None:
    report = report_of(lambda: leak(pool, MIB))

    check_sums(report)
    assert report.largest_group == Group("loss", None, MIB, report.live_count)
    assert advice_of(report).startswith("look for a leak: through ")
    assert "blocks of 1.0 MiB with tag 'loss'" in advice_of(report)


def test_a_leak_is_named_by_its_line_while_stacks_are_kept(pool: Pool) -> None:
    with madl.keep_stacks():
        report = report_of(lambda: leak(pool, MIB))

    check_sums(report)
    assert report.largest_group is not None
    line = str(report.largest_group.line)
    assert "shortages.py:" in line
    assert advice_of(report).endswith(f"with tag 'loss'; from {line}.")
    assert report.lines[0].name == line


def test_a_program_that_only_fills_a_pool_has_no_leak(pool: Pool) -> None:
    held = [pool.allocate(MIB // 4) for _ in range(120)]

    report = report_of(lambda: pool.allocate(60 * MIB))

    assert len(held) == 120
    assert not report.is_growing
    assert "a limit of" in advice_of(report)


def test_a_steady_program_that_asks_for_much_has_no_leak(pool: Pool) -> None:
    held = [pool.allocate(MIB) for _ in range(20)]
    for _ in range(200):
        pool.allocate(2 * MIB)

    report = report_of(lambda: pool.allocate(60 * MIB))

    assert len(held) == 20
    assert not report.is_growing
    assert "leak" not in advice_of(report)


@pytest.mark.parametrize("commits", [True, False])
def test_what_another_pool_keeps_is_to_be_trimmed(commits: bool) -> None:
    device = SimBackend(total_nbytes=64 * MIB, commits=commits)
    other, pool = Pool(device), Pool(device)
    other.allocate(40 * MIB).free()
    held = pool.allocate(20 * MIB)

    report = report_of(lambda: pool.allocate(20 * MIB))

    check_sums(report)
    assert report.others == OtherPools(40 * MIB, 0)
    assert advice_of(report) == (
        "trim() of other pools of sim: they keep 40.0 MiB that nobody uses."
    )
    other.trim()
    assert pool.allocate(20 * MIB).nbytes == held.nbytes


def test_what_another_program_has_taken_is_said() -> None:
    device = SimBackend(total_nbytes=64 * MIB)
    theirs = device.reserve(50 * MIB)
    device.commit(theirs, 0, 50 * MIB)
    pool = Pool(device)
    held = pool.allocate(10 * MIB)

    report = report_of(lambda: pool.allocate(10 * MIB))

    check_sums(report)
    assert held.nbytes == 10 * MIB
    assert advice_of(report) == (
        "end other programs that use sim: 50.0 MiB of its 64.0 MiB are not in any pool "
        "of this process."
    )


def test_a_device_that_is_full_of_our_own_does_not_blame_others() -> None:
    pool = Pool(SimBackend(total_nbytes=64 * MIB))
    held = pool.allocate(60 * MIB)

    report = report_of(lambda: pool.allocate(10 * MIB))

    check_sums(report)
    assert held.nbytes == 60 * MIB
    assert advice_of(report) == (
        "free some memory: pools of this process have 60.0 MiB of the 64.0 MiB of sim."
    )


def test_a_request_larger_than_the_device_is_advised_no_limit() -> None:
    pool = Pool(SimBackend(total_nbytes=64 * MIB), limit=32 * MIB)

    report = report_of(lambda: pool.allocate(65 * MIB))

    assert advice_of(report) == "a smaller request: the device has 64.0 MiB in all."


def test_a_limit_that_the_device_could_not_fill_is_not_advised() -> None:
    device = SimBackend(total_nbytes=64 * MIB)
    device.commit(device.reserve(40 * MIB), 0, 40 * MIB)
    pool = Pool(device, limit=20 * MIB)
    held = pool.allocate(15 * MIB)

    report = report_of(lambda: pool.allocate(18 * MIB))

    assert held.nbytes == 15 * MIB
    assert advice_of(report) == (
        "free some memory; a higher limit does not help while the device has 9.0 MiB "
        "unused: first end other programs that use sim: 40.0 MiB of its 64.0 MiB are "
        "not in any pool of this process."
    )


@pytest.mark.parametrize(
    ("device", "advice"),
    [
        (
            "cpu",
            "the device says that 8.0 MiB are unused, so something bounds this "
            "process: a higher `ulimit -v` or `ulimit -d`, or a larger cgroup.",
        ),
        (
            "opencl:0",
            "the device says that 8.0 MiB are unused, but not in one piece, or not for "
            "this program: smaller blocks, or end other programs that use it.",
        ),
    ],
)
def test_a_refusal_in_spite_of_unused_memory_is_something_else(
    device: str, advice: str
) -> None:
    report = OutOfMemoryReport(
        device,
        MIB,
        MIB,
        native=REFUSED,
        device_total_nbytes=9 * MIB,
        device_unused_nbytes=8 * MIB,
        committed_nbytes=MIB,
        is_growing=True,  # as a training is that begins
        largest_group=Group("loss", None, MIB, 1),
    )

    assert advice_of(report) == advice


def test_the_report_is_plain_data(pool: Pool) -> None:
    held = fill(pool, 5 * MIB, tag="a")

    report = report_of(lambda: pool.allocate(5 * MIB))
    figures = report.as_dict()

    assert len(held) == report.live_count
    assert json.loads(json.dumps(figures)) == figures
    assert figures["fragmentation_ratio"] == report.fragmentation_ratio
    assert figures["tags"] == [
        {
            "name": "a",
            "nbytes": report.live_nbytes,
            "padding_nbytes": 0,
            "block_count": len(held),
        }
    ]


def test_a_report_survives_pickling(pool: Pool) -> None:
    with madl.keep_stacks(), pytest.raises(OutOfMemoryError) as caught:
        leak(pool, MIB)

    loaded = pickle.loads(pickle.dumps(caught.value))

    assert (loaded.report, str(loaded)) == (caught.value.report, str(caught.value))


def test_what_many_tags_hold_adds_up_too() -> None:
    pool = Pool("sim", limit=8 * MIB)
    held = [pool.allocate(1000 * (n + 1), tag=f"layer{n}") for n in range(50)]

    report = report_of(lambda: pool.allocate(8 * MIB))

    check_sums(report)
    assert len(held) == 50
    assert len(report.tags) == 21
    assert report.tags[0].name == "layer49"
    assert report.tags[-1].name == "(others)"


def test_sums_add_up_while_other_threads_work() -> None:
    pool = Pool("sim", limit=32 * MIB)
    held = pool.allocate(20 * MIB, tag="weights")
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            pool.allocate(5000, tag="work").free()
            pool.allocate(70_000)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        reports = [report_of(lambda: pool.allocate(30 * MIB)) for _ in range(20)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    assert held.nbytes == 20 * MIB
    for report in reports:
        assert (
            report.live_nbytes + report.padding_nbytes + report.free_nbytes
            == report.committed_nbytes
        )
        assert sum(tag.nbytes for tag in report.tags) == report.live_nbytes


def test_a_device_that_does_not_answer_hides_no_report() -> None:
    class Mute(FakeBackend):
        is_mute = False

        def memory_info(self) -> MemoryInfo:
            if self.is_mute:
                raise madl.BackendCallError(self.device, "ask", REFUSED)
            return super().memory_info()

    device = Mute()
    pool = Pool(device, limit=MIB // 4)
    held = pool.allocate(MIB // 4)
    device.is_mute = True

    report = report_of(lambda: pool.allocate(512))

    check_sums(report)
    assert held.nbytes == MIB // 4
    assert report.device_total_nbytes is None


def test_a_request_that_interrupts_another_is_told_so() -> None:
    reports: list[OutOfMemoryReport] = []

    class Interrupted(SimBackend):
        def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
            if not reports:
                reports.append(report_of(lambda: busy.allocate(14 * MIB)))
            super().commit(reservation, offset, nbytes)

    busy = Pool(Interrupted(total_nbytes=64 * MIB), limit=16 * MIB)
    held = busy.allocate(4 * MIB)

    (report,) = reports
    check_sums(report)
    assert held.nbytes == 4 * MIB == busy.stats().committed_nbytes
    assert report.others == OtherPools(), "what is being committed is the pool's own"
    assert "  committed   not known, limit 16.0 MiB\n" in str(OutOfMemoryError(report))
    assert advice_of(report).startswith("allocate outside of finalizers, signal")


def test_names_longer_than_a_line_are_no_wider() -> None:
    tag = "encoder" * 40
    with Pool("sim", limit=8 * MIB) as pool, madl.tag(tag, limit=7 * MIB):
        held = pool.allocate(6 * MIB, tag=f"weights/{tag}/end")
        small = pool.allocate(MIB)
        by_limit = report_of(lambda: pool.allocate(8 * MIB))
        by_tag = report_of(lambda: pool.allocate(7 * MIB))
        del held, small

    for report in (by_limit, by_tag):
        check_sums(report)
        text = str(OutOfMemoryError(report))
        assert "encoder/end: 6.0 MiB in 1\n" in text
    assert by_tag.tag_limit is not None
    assert tag in advice_of(by_tag).replace(" ", "")
