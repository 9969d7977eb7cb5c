"""The code of the how-to on settings runs as it is printed."""

from tests.pages import code_of, needs_pages
from tests.programs import run

pytestmark = needs_pages


def test_configure() -> None:
    status, printed, errors = run(code_of("docs/how-to/configure.md"))

    limit, first, second = printed.splitlines()
    assert (status, errors) == (0, "")
    assert limit == str(64 << 20)
    assert first == "limit cpu=64.0 MiB, cuda=2.0 GiB configure <string>:3"
    assert second == "fit best configure <string>:3"
