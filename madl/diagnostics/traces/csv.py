"""Read the CSV files of MiniMalloc and idealloc: one row a lifetime.

Each row is a block that is live from ``lower`` until just before ``upper``, in units
of logical time: the input of planners, which know all lifetimes beforehand. The first
line names the columns, in any order, by any of the names that MiniMalloc knows.
"""

from array import array

from madl.diagnostics.traces.builder import TraceBuilder
from madl.diagnostics.traces.lines import RefusedError, printable, shown, whole_number
from madl.diagnostics.traces.trace import NBYTES_LIMIT

CSV_FIRST_LINE = "id,lower,upper,size"
_NEEDED = CSV_FIRST_LINE.split(",")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Spreadsheets write one."""
_COLUMNS = {
    "id": "id",
    "buffer": "id",
    "buffer_id": "id",
    "lower": "lower",
    "start": "lower",
    "begin": "lower",
    "upper": "upper",
    "end": "upper",
    "size": "size",
}
_LAST_TIME = "end"
"""A column of this name has the last time of a block, not the first without it."""
ROW_COUNT_LIMIT = 1 << 22
"""All rows are in memory, to be sorted: about 200 bytes each."""
TIME_LIMIT = 1 << 63


def is_csv(first_line: bytes) -> bool:
    """Return whether a line names the columns of a lifetime."""
    return {_COLUMNS.get(title) for title in _titles(first_line)}.issuperset(_NEEDED)


def _titles(line: bytes) -> list[str]:
    text = line.removeprefix(_BYTE_ORDER_MARK).decode(errors="replace")
    return [title.strip().lower() for title in text.split(",")]


class CsvReader:
    """Adds the allocation and the free of every row, in order of time.

    At equal times frees come before allocations, and each of them in row order. Rows
    are named by any text; the trace counts ids in the order of allocation.
    """

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder
        self._head = ""
        self._column_count = 0
        self._at: list[int] = []
        """Where in a row the four columns are; empty before the first line."""
        self._past_last = 0
        self._names: set[bytes] = set()
        self._lower = array("q")
        self._upper = array("q")
        self._size = array("q")

    def add(self, line: bytes) -> None:
        """Note a row; the first line names the columns."""
        if not self._at:
            self._begin(line)
            return
        fields = line.split(b",")
        if len(fields) != self._column_count:
            raise RefusedError(f"a row must be {self._head}, got {shown(line)}")
        name, lower_text, upper_text, size_text = (fields[at] for at in self._at)
        lower = whole_number(lower_text, "lower", TIME_LIMIT)
        upper = whole_number(upper_text, "upper", TIME_LIMIT - 1) + self._past_last
        size = whole_number(size_text, "size", NBYTES_LIMIT)
        if lower >= upper:
            raise RefusedError(f"lower must be below upper, got {lower} and {upper}")
        if name in self._names:
            raise RefusedError(f"id {shown(name)} is used twice")
        if len(self._names) == ROW_COUNT_LIMIT:
            raise RefusedError(f"the file has more than {ROW_COUNT_LIMIT} rows")
        self._names.add(name)
        self._lower.append(lower)
        self._upper.append(upper)
        self._size.append(size)

    def _begin(self, line: bytes) -> None:
        titles = _titles(line)
        names = [_COLUMNS.get(title, title) for title in titles]
        if len(set(names)) < len(names):
            raise RefusedError(f"a column is named twice: {shown(line)}")
        self._head, self._column_count = ",".join(titles), len(names)
        self._at = [names.index(name) for name in _NEEDED]
        self._past_last = int(_LAST_TIME in titles)
        unused = printable(", ".join(name for name in names if name not in _NEEDED))
        if unused:
            self._builder.notes.append(f"columns that are not used: {unused}")

    def finish(self) -> None:
        """Add the events of all rows."""
        builder = self._builder
        rows = range(len(self._size))
        id_of = array("q", bytes(8 * len(rows)))
        departures = sorted(rows, key=self._upper.__getitem__)
        departed = 0
        for row in sorted(rows, key=self._lower.__getitem__):
            # This row itself departs later, so the loop ends within the list, and
            # those that depart now have arrived before.
            while self._upper[departures[departed]] <= self._lower[row]:
                builder.free(id_of[departures[departed]])
                departed += 1
            id_of[row] = builder.allocate(self._size[row])
        for row in departures[departed:]:
            builder.free(id_of[row])
