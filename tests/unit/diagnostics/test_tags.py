"""``with madl.tag(...)`` labels allocations, and pools count by label."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

import madl
from madl import Memory, Pool, TagStats
from madl.pool.limits import TagBudget
from tests.interruptions import comes_between


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("sim") as pool:
        yield pool
        pool.check()


def test_allocations_inside_have_the_tag(pool: Pool) -> None:
    with madl.tag("weights") as name:
        inside = pool.allocate(8)
    outside = pool.allocate(8)

    assert (name, inside.tag, outside.tag) == ("weights", "weights", None)


def test_tags_join_with_a_slash(pool: Pool) -> None:
    with madl.tag("model"), madl.tag("encoder") as name:
        memory = pool.allocate(8)

    assert name == memory.tag == "model/encoder"


def test_a_tag_of_its_own_wins(pool: Pool) -> None:
    with madl.tag("model"):
        memory = pool.allocate(8, tag="other")

    assert memory.tag == "other"


def test_a_tag_ends_with_an_error(pool: Pool) -> None:
    with pytest.raises(KeyError), madl.tag("weights"):
        raise KeyError

    assert pool.allocate(8).tag is None


def test_a_block_from_a_bin_loses_its_old_tag(pool: Pool) -> None:
    pool.allocate(8, tag="old").free()

    assert pool.allocate(8).tag is None


def test_each_tag_is_counted(pool: Pool) -> None:
    with madl.tag("a"):
        held = [pool.allocate(1000) for _ in range(3)]
    with madl.tag("b"):
        pool.allocate(10).free()
    held.pop()

    assert pool.stats().tags == {
        "a": TagStats(
            live_nbytes=2000,
            live_high_water_nbytes=3000,
            padding_nbytes=48,
            allocation_count=3,
            free_count=1,
        ),
        "b": TagStats(
            live_nbytes=0,
            live_high_water_nbytes=10,
            padding_nbytes=0,
            allocation_count=1,
            free_count=1,
        ),
    }


@pytest.mark.parametrize("pooling", [True, False])
def test_padding_of_tags_adds_up_to_that_of_the_pool(pooling: bool) -> None:
    pool = Pool("sim", pooling=pooling)
    held = [pool.allocate(100, tag=tag) for tag in ("a", "b", "a")]

    stats = pool.stats()

    assert len(held) == 3
    assert sum(tag.padding_nbytes for tag in stats.tags.values()) == (
        stats.padding_nbytes
    )


def test_a_tagged_block_that_is_looked_at_is_live() -> None:
    with Pool("cpu") as pool:
        memory = pool.allocate(100, tag="a")
        view = memory.memoryview()
        memory.free()

        assert pool.stats().tags["a"].live_nbytes == 100
        del view
        assert pool.stats().tags["a"].live_nbytes == 0


def test_tags_do_not_reach_other_threads(pool: Pool) -> None:
    found: list[str | None] = []
    with madl.tag("weights"):
        thread = threading.Thread(target=lambda: found.append(pool.allocate(8).tag))
        thread.start()
        thread.join()

    assert found == [None]


def test_tags_do_not_disturb_other_tasks(pool: Pool) -> None:
    async def work(name: str) -> str | None:
        with madl.tag(name):
            await asyncio.sleep(0)
            return pool.allocate(8).tag

    async def both() -> list[str | None]:
        return list(await asyncio.gather(work("a"), work("b")))

    assert asyncio.run(both()) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        (
            "",
            ValueError,
            "a tag must be printable, without a slash, and not empty, got ''",
        ),
        (
            "a/b",
            ValueError,
            "a tag must be printable, without a slash, and not empty, got 'a/b'",
        ),
        (5, TypeError, "a tag must be a text, got 5 (int)"),
        (None, TypeError, "a tag must be a text, got None (NoneType)"),
    ],
)
def test_other_names_are_refused(name: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught, madl.tag(name):
        pass

    assert str(caught.value) == text


def test_the_tag_of_an_allocation_must_be_a_text(pool: Pool) -> None:
    with pytest.raises(TypeError) as caught:
        pool.allocate(8, tag=5)  # type: ignore[arg-type]  # what is tested

    assert str(caught.value) == "tag must be a text, got 5 (int)"
    assert pool.stats().allocation_count == 0


def test_a_tag_of_more_than_one_line_is_refused() -> None:
    pool = madl.Pool("sim")

    with pytest.raises(ValueError, match="printable"):
        pool.allocate(8, tag="a\nb")
    with pytest.raises(ValueError, match="printable"), madl.tag("a\nb"):
        pass

    assert pool.stats().live_nbytes == 0


def test_who_uses_a_tag_first_keeps_no_other_thread_waiting(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a signal handler that came there could wait for that thread for ever."""
    is_waiting: list[bool] = []

    class Slow(TagBudget):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            other = Pool(pool._backend.backend)
            thread = threading.Thread(target=other.allocate, args=("1 MiB",))
            thread.start()
            thread.join(10)
            is_waiting.append(thread.is_alive())

    monkeypatch.setattr("madl.pool.limits.TagBudget", Slow)

    pool.allocate(8, tag="never used before").free()

    assert is_waiting == [False]


def interrupt() -> None:
    raise KeyboardInterrupt


def is_interrupted_free(memory: Memory, moments: int) -> bool:
    """Free, with Ctrl-C at a moment of it; return whether it came so far.

    In a thread that ends, as in ``is_interrupted``.
    """
    seen: list[bool] = []

    def free() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            memory.free()

    thread = threading.Thread(
        target=lambda: seen.append(comes_between(free, moments, interrupt))
    )
    thread.start()
    thread.join()
    return seen == [True]


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"  # of what finalizers swallow
)
@pytest.mark.parametrize("debug", [False, True])
def test_an_interrupted_free_is_counted_once(debug: bool) -> None:
    moments, is_inside = 0, True
    while is_inside:
        moments += 1
        pool = Pool("cpu", debug=debug)
        memory = pool.allocate(1000, tag="interrupted/once")
        is_inside = is_interrupted_free(memory, moments)

        stats = pool.stats().tags["interrupted/once"]
        is_freed = memory.is_freed
        assert stats.live_nbytes == (0 if is_freed else 1000)
        assert stats.free_count == is_freed
        assert (stats.padding_nbytes == 0) == is_freed
        if not is_freed:
            memory.free()
        for tag in ("interrupted", "interrupted/once"):
            assert pool._growth.budget.device.tag(tag).live_nbytes == 0

    assert moments > 4
