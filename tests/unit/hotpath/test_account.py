"""What is counted in one int comes out as it went in."""

from hypothesis import given
from hypothesis import strategies as st

from madl.hotpath.fallback.account import Account, charges

SIZES = st.integers(0, 1 << 62)


@given(st.lists(st.tuples(SIZES, SIZES), max_size=50), st.data())
def test_counts_do_not_reach_into_each_other(
    blocks: list[tuple[int, int]], data: st.DataObject
) -> None:
    account = Account()
    for nbytes, capacity in blocks:
        account.add_binned(capacity)
        account.total += charges(nbytes, capacity)[0]
    freed = data.draw(st.lists(st.sampled_from(blocks), unique=True)) if blocks else []
    for nbytes, capacity in freed:
        account.total += charges(nbytes, capacity)[1]

    live_nbytes = sum(nbytes for nbytes, _ in blocks) - sum(
        nbytes for nbytes, _ in freed
    )
    assert account.live_nbytes == live_nbytes
    assert account.binned_nbytes == sum(capacity for _, capacity in freed)
    assert account.allocation_count == len(blocks)


@given(SIZES, SIZES)
def test_a_correction_leaves_the_allocations(live: int, binned: int) -> None:
    account = Account()
    account.total = 3 * charges(1, 512)[0] + 3 * charges(1, 512)[1]

    assert account.correct(account.total, live, binned)

    assert account.live_nbytes == live
    assert account.binned_nbytes == binned
    assert account.allocation_count == 3
