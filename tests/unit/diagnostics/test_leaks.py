"""``with madl.leak_check()`` finds what stays live."""

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

import madl
from madl import LeakError, Memory, Pool, stacks


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cpu") as pool:
        yield pool


def test_what_is_freed_inside_is_no_leak(pool: Pool) -> None:
    with madl.leak_check(pool):
        pool.allocate(8).free()
        pool.allocate(8)


def test_what_stays_live_is_a_leak(pool: Pool) -> None:
    held: list[Memory] = []

    def work() -> None:
        held.extend(pool.allocate(1024, tag="weights") for _ in range(2))
        held.append(pool.allocate(100))

    with pytest.raises(LeakError) as caught, madl.leak_check(pool):
        work()

    assert str(caught.value) == (
        "cpu: blocks that were not freed, by tag: weights: 2.0 KiB in 2, (no tag): "
        "100 B in 1. Try: free each Memory, or leak_check(depth=4) to see where they "
        "come from"
    )
    assert caught.value.leaked == (("weights", (2048, 2)), ("(no tag)", (100, 1)))


def test_what_was_live_before_is_no_leak(pool: Pool) -> None:
    before = pool.allocate(8)

    with madl.leak_check(pool):
        pool.allocate(8).free()

    assert not before.is_freed


def test_a_free_of_something_older_hides_no_leak_of_another_size(pool: Pool) -> None:
    held = [pool.allocate(4096)]

    def work() -> None:
        held.append(pool.allocate(8))
        held.pop(0).free()

    with pytest.raises(LeakError) as caught, madl.leak_check(pool):
        work()

    assert caught.value.leaked == (("(no tag)", (8, 1)),)


def test_a_view_that_stays_is_a_leak(pool: Pool) -> None:
    with pytest.raises(LeakError) as caught, madl.leak_check(pool):
        array = pool.allocate(8, tag="array").as_array()

    assert array.nbytes == 8
    assert caught.value.leaked == (("array", (8, 1)),)


def test_what_only_a_cycle_holds_is_no_leak(pool: Pool) -> None:
    with madl.leak_check(pool):
        cycle: list[object] = [pool.allocate(8)]
        cycle.append(cycle)
        del cycle


def test_another_error_is_not_hidden(pool: Pool) -> None:
    held = []

    def work() -> None:
        held.append(pool.allocate(8))
        raise KeyError

    with pytest.raises(KeyError), madl.leak_check(pool):
        work()


def test_the_pool_in_use_is_checked_by_default(pool: Pool) -> None:
    with madl.use_pool(pool), pytest.raises(LeakError) as caught, madl.leak_check():
        memory = madl.allocate(8)

    assert memory.nbytes == 8
    assert caught.value.device == "cpu"


def test_a_leak_says_which_lines_allocated(pool: Pool) -> None:
    held: list[Memory] = []

    def work() -> None:
        held.extend(pool.allocate(1024, tag=tag) for tag in ("a", "b"))
        held.append(pool.allocate(100))

    with pytest.raises(LeakError) as caught, madl.leak_check(pool, depth=2):
        work()

    line = work.__code__.co_firstlineno
    assert str(caught.value) == (
        "cpu: blocks that were not freed, by tag: a: 1.0 KiB in 1, b: 1.0 KiB in 1, "
        "(no tag): 100 B in 1\n"
        "  2.0 KiB in 2, allocated at\n"
        f"    {__file__}:{line + 1} in <genexpr>\n"
        f"    {__file__}:{line + 1} in work\n"
        "  100 B in 1, allocated at\n"
        f"    {__file__}:{line + 2} in work\n"
        f"    {__file__}:{line + 5} in test_a_leak_says_which_lines_allocated\n"
        "Try: free each Memory"
    )


def test_what_is_live_is_listed_by_tag_and_line(pool: Pool) -> None:
    before = pool.allocate(10)
    with madl.keep_stacks(), madl.use_pool(pool):
        held = [madl.allocate(1000, tag="a") for _ in range(3)]

    first, second = madl.outstanding(pool)

    assert (first.tag, first.nbytes, first.block_count) == ("a", 3000, len(held))
    assert [line.filename for line in first.stack] == [__file__]
    assert second == (None, (), before.nbytes, 1)


def test_no_stack_is_kept_after_the_block(pool: Pool) -> None:
    with madl.keep_stacks(3), madl.keep_stacks(1):
        pass
    held = pool.allocate(8, tag="a")

    assert madl.outstanding(pool) == (("a", (), held.nbytes, 1),)
    assert stacks.depth == 0


def test_the_deepest_wish_counts(pool: Pool) -> None:
    with madl.keep_stacks(3), madl.keep_stacks(1):
        held = pool.allocate(8)

    assert len(madl.outstanding(pool)[0].stack) == 3
    assert held.nbytes == 8


def test_equal_stacks_are_kept_once(pool: Pool) -> None:
    with madl.keep_stacks(2):
        held = [pool.allocate(8) for _ in range(5)]

    blocks = [block for arena in pool.snapshot().arenas for block in arena.blocks]
    assert len({id(b.stack) for b in blocks if b.state == "live"}) == 1
    assert len(held) == 5


def test_the_number_of_stacks_is_bounded(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "MOST_STACKS", 0)
    with madl.keep_stacks():
        held = eval("pool.allocate(8)", {"pool": pool})

    (group,) = madl.outstanding(pool)
    assert group.stack == stacks.TOO_MANY
    assert held.nbytes == 8


def test_a_depth_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^depth must be positive, got 0$"):
        madl.keep_stacks(0).__enter__()


def test_dropping_a_handle_is_a_warning_in_debug_mode(pool: Pool) -> None:
    with (
        madl.debug(),
        pytest.warns(ResourceWarning) as caught,
    ):
        pool.allocate(1024, tag="a")

    line = test_dropping_a_handle_is_a_warning_in_debug_mode.__code__.co_firstlineno
    assert [str(one.message) for one in caught] == [
        "memory of 1.0 KiB was dropped without free(), tag 'a', allocated at "
        f"{__file__}:{line + 5}"
    ]
    assert pool.stats().live_nbytes == 0


def test_what_is_freed_or_viewed_is_no_warning_in_debug_mode(pool: Pool) -> None:
    with madl.debug():
        pool.allocate(8).free()
        with pool.allocate(8):
            pass
        array = pool.allocate(8).as_array()
        del array
        memory = pool.allocate(8)
        memory.resize(4096)
        memory.free()
        freed_early = pool.allocate(8)
        view = freed_early.memoryview()
        freed_early.free()
        del view

    assert pool.stats().live_nbytes == 0


def test_a_drop_after_debug_mode_is_no_warning(pool: Pool) -> None:
    with madl.debug():
        memory = pool.allocate(8)
    del memory

    assert pool.stats().live_nbytes == 0


def test_a_warning_that_is_an_error_keeps_no_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    pool = Pool("cpu")
    alive = weakref.ref(pool)
    with madl.debug():
        pool.allocate(8)  # the suite lets every warning be an error

    del pool
    gc.collect()

    assert alive() is None


def test_a_warning_that_is_an_error_frees_all_the_same(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[type[BaseException]] = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda args: raised.append(args.exc_type)
    )
    with madl.debug():
        pool.allocate(8)  # the suite lets every warning be an error

    assert raised == [ResourceWarning]
    assert pool.stats().live_nbytes == 0
    pool.check()
