"""A trace replayed with bytes of its own in every block."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from madl import CorruptedPoolError, Memory, MissingCapabilityError, Pool
from madl.cli.replay import replay
from madl.diagnostics import read_trace
from madl.diagnostics.runs.verify import Verified, verify

SMALL_FILE = b"# madl-trace v1\na,0,3000\na,1,100\nf,0\na,2,70000\na,3,0\nf,1\n"
SMALL = read_trace(SMALL_FILE)


def test_every_block_is_written_and_found_as_it_was() -> None:
    steps: list[int] = []
    with Pool("cpu") as pool:
        verified = verify(SMALL, pool, on_progress=steps.append)

        assert verified == Verified(blocks=4, nbytes=73100)
        assert pool.stats().live_nbytes == 0
    assert sum(steps) == len(SMALL)


@pytest.mark.parametrize("block", [0, 2], ids=["freed", "live at the end"])
def test_a_byte_that_changed_is_reported(block: int) -> None:
    held: list[Memory] = []
    pool = Pool("cpu")

    class Wild:
        """Stands for the pool, and for a write to a block that is somebody else's."""

        def allocate(self, nbytes: int) -> Memory:
            memory = pool.allocate(nbytes)
            if len(held) > block:
                held[block].memoryview()[7] ^= 1
            held.append(memory)
            return memory

    with pytest.raises(CorruptedPoolError) as caught:
        verify(SMALL, Wild())  # type: ignore[arg-type]  # in its place

    assert str(caught.value).startswith(
        f"byte 7 of allocation {block}, {SMALL.nbytes_of[block]} bytes on cpu: found "
    )


def test_a_device_without_content_is_refused() -> None:
    with pytest.raises(MissingCapabilityError):
        verify(SMALL, Pool("sim"))


def test_the_command_says_how_much_was_read_back(tmp_path: Path) -> None:
    path = tmp_path / "small.trace"
    path.write_bytes(SMALL_FILE)

    done = CliRunner().invoke(replay, [str(path), "--device", "cpu", "--verify"])

    assert done.exit_code == 0
    assert "written and read back" in done.output
    assert "71.4 KiB" in done.output
