"""A trace of a machine with wider addresses is refused, whatever is done with it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from madl import Capability, FileFormatError, Pool
from madl.diagnostics.memory_viz import export_trace
from madl.diagnostics.replay import replay
from madl.diagnostics.runs.from_trace import history_of_trace
from madl.diagnostics.runs.verify import verify
from madl.diagnostics.traces.trace import Trace
from madl.testing import FakeBackend
from tests.traces import trace

HOST = Capability.HOST_ACCESS | Capability.COMMIT
WIDE = trace("a,0,100", f"a,1,{5 << 30}", "f,0")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave 32 bits for addresses."""
    monkeypatch.setattr("madl.sizes.ADDRESS_SPACE_NBYTES", 1 << 32)
    monkeypatch.setattr("madl.pool.allocate.LARGEST_CAPACITY_NBYTES", (1 << 32) - 1)


USES: dict[str, Callable[[Trace, Path], object]] = {
    "replay": lambda trace, _: replay(trace, Pool("sim")),
    "history": lambda trace, _: history_of_trace(trace),
    "verify": lambda trace, _: verify(trace, Pool(FakeBackend(capabilities=HOST))),
    "export": lambda trace, folder: export_trace(trace, folder / "x.pickle"),
}


@pytest.mark.parametrize("use", USES)
def test_what_no_pool_can_address_is_an_error_of_the_file(
    use: str, tmp_path: Path
) -> None:
    with pytest.raises(FileFormatError) as caught:
        USES[use](WIDE, tmp_path)

    assert str(caught.value) == (
        f"{WIDE.name}: nbytes must fit the address space, got {5 << 30} of at most "
        f"{(1 << 32) - 1}. Try: a machine with wider addresses"
    )
    assert list(tmp_path.iterdir()) == []
