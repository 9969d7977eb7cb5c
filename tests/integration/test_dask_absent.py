"""Without Dask there is one error, which names what to install."""

from tests.programs import run

WITHOUT = """
import sys
sys.modules["distributed"] = None
import madl.integrations.dask
"""


def test_without_dask_the_import_says_what_to_install() -> None:
    _, _, errors = run(WITHOUT)

    last = errors.splitlines()[-1]
    assert last.startswith(
        "ImportError: madl.integrations.dask needs Dask's distributed ("
    )
    assert last.endswith("; pip install 'madl[dask]'")
