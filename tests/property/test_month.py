"""Three thousand operations a day, for a month; ``nox -s month`` does a hundred times.

More than any other test it lets sizes come that were never there before.
"""

from tests.month import DAYS, Month, check_bounds


def test_a_month_in_which_sizes_drift_leaves_the_books_of_a_pool_small() -> None:
    days = list(Month(100_000).days())

    assert len(days) == DAYS
    check_bounds(days)
