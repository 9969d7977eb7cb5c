"""Whatever the writer accepts, the reader gives back."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from madl.diagnostics import Allocate, Event, Free, Marker, TraceWriter, read_trace
from madl.sizes import ADDRESS_SPACE_NBYTES

ONE_LINE = st.text(
    st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20
)
HEADERS = st.dictionaries(
    ONE_LINE.map(str.strip).filter(lambda key: key and ":" not in key),
    ONE_LINE.map(str.strip),
    max_size=4,
)
ALLOCATE = st.builds(
    Allocate,
    st.just(0),
    st.integers(0, min(1 << 56, ADDRESS_SPACE_NBYTES) - 1),
    st.just(0) | st.integers(-(1 << 63) + 1, (1 << 63) - 1),
    st.none() | ONE_LINE.filter(bool),
)
STEPS = st.lists(ALLOCATE | st.builds(Marker, ONE_LINE) | st.integers(0, 1 << 20))


@st.composite
def programs(draw: st.DrawFn) -> list[Event]:
    """Events in which ids count from 0 and each is freed at most once."""
    events: list[Event] = []
    live: list[int] = []
    count = 0
    for step in draw(STEPS):
        if isinstance(step, Allocate):
            events.append(Allocate(count, step.nbytes, step.stream, step.tag))
            live.append(count)
            count += 1
        elif isinstance(step, Marker):
            events.append(step)
        elif live:
            events.append(Free(live.pop(step % len(live))))
    return events


def write(path: Path, headers: dict[str, str], events: Sequence[Event]) -> None:
    with TraceWriter(path, headers) as writer:
        for event in events:
            if isinstance(event, Allocate):
                made = writer.allocate(event.nbytes, stream=event.stream, tag=event.tag)
                assert made == event.id
            elif isinstance(event, Free):
                writer.free(event.id)
            else:
                writer.mark(event.label)


@given(HEADERS, programs())
def test_a_written_trace_reads_back_the_same(
    headers: dict[str, str], events: list[Event]
) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "run.trace.gz"

        write(path, headers, events)
        trace = read_trace(path)

    assert trace.headers == headers
    assert list(trace.events()) == events


@given(programs())
def test_peak_live_is_the_largest_sum_of_what_is_live(events: list[Event]) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "run.trace.gz"
        write(path, {}, events)
        trace = read_trace(path)
    live: dict[int, int] = {}
    peak = 0

    for event in events:
        if isinstance(event, Allocate):
            live[event.id] = event.nbytes
        elif isinstance(event, Free):
            del live[event.id]
        peak = max(peak, sum(live.values()))

    assert trace.peak_live_nbytes == peak
