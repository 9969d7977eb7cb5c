"""The code of the README runs as it is printed."""

from tests.pages import code_of, needs_pages
from tests.programs import output_of


@needs_pages
def test_the_code_of_the_readme_runs() -> None:
    committed, given_back = map(int, output_of("-c", code_of("README.md")).split())

    assert given_back == committed >= 64 << 20
