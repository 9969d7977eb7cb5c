"""The example of shared memory, and the code of its page, run as they are printed."""

from tests.pages import EXAMPLES, blocks, needs_examples, needs_pages
from tests.programs import output_of, run_as_file


@needs_examples
def test_the_loader_reads_every_batch() -> None:
    expected = "20 batches of 6 MiB, sum of their means 190\n"
    assert output_of(EXAMPLES / "shared_memory" / "loader.py") == expected


@needs_pages
def test_the_code_of_the_page_runs() -> None:
    for block in blocks("docs/how-to/share-between-processes.md"):
        done = run_as_file(block)
        assert (done.returncode, done.stderr) == (0, ""), block
