"""Files of one idea: short, and named after it."""

from tests.architecture.modules import FILES, PACKAGE

LINE_BUDGET = 300
# One structure whose operations share invariants; half of it is said, not done.
LONGER = {"core/skiplist.py": 480}
SAYS_NOTHING = {"base", "common", "helpers", "misc", "utils"}


def test_no_file_is_longer_than_its_budget() -> None:
    lines = {
        path.relative_to(PACKAGE).as_posix(): len(path.read_text("utf-8").splitlines())
        for path in FILES
    }

    assert {
        name: n for name, n in lines.items() if n > LONGER.get(name, LINE_BUDGET)
    } == {}


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [path for path in FILES if path.stem in SAYS_NOTHING] == []
