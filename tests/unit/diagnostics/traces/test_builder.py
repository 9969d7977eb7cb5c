"""What cannot have happened does not get into a trace."""

import pytest

from madl.diagnostics.traces.builder import TraceBuilder
from madl.diagnostics.traces.lines import RefusedError


@pytest.mark.parametrize(
    ("freed", "reason"),
    [
        (0, "id 0 is freed twice"),
        (1, "id 1 is freed, but only 1 are allocated"),
    ],
)
def test_a_refused_free_changes_nothing(freed: int, reason: str) -> None:
    builder = TraceBuilder()
    builder.free(builder.allocate(8))

    with pytest.raises(RefusedError) as caught:
        builder.free(freed)

    assert str(caught.value) == reason
    assert list(builder.finish("tiny").operations) == [0, ~0]
