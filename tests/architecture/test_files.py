"""Files are named after their idea."""

from tests.architecture.modules import FILES

SAYS_NOTHING = {"base", "common", "helpers", "misc", "utils"}


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [path for path in FILES if path.stem in SAYS_NOTHING] == []
