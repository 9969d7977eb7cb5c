"""Read the CSV files of MiniMalloc and idealloc: one row a lifetime.

Each row is a block that is live from ``lower`` until just before ``upper``, in units
of logical time: the input of planners, which know all lifetimes beforehand.
"""

from array import array

from madl.diagnostics.traces.builder import TraceBuilder
from madl.diagnostics.traces.lines import RefusedError, shown, whole_number
from madl.diagnostics.traces.trace import NBYTES_LIMIT

CSV_FIRST_LINE = "id,lower,upper,size"
ROW_COUNT_LIMIT = 1 << 22
"""All rows are in memory, to be sorted: about 200 bytes each."""
TIME_LIMIT = 1 << 63


class CsvReader:
    """Adds the allocation and the free of every row, in order of time.

    At equal times frees come before allocations, and each of them in row order. Rows
    are named by any text; the trace counts ids in the order of allocation.
    """

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder
        self._names: set[bytes] = set()
        self._lower = array("q")
        self._upper = array("q")
        self._size = array("q")

    def add(self, line: bytes) -> None:
        """Note a row."""
        fields = line.split(b",")
        if len(fields) != 4:
            raise RefusedError(f"a row must be {CSV_FIRST_LINE}, got {shown(line)}")
        name = fields[0]
        lower = whole_number(fields[1], "lower", TIME_LIMIT)
        upper = whole_number(fields[2], "upper", TIME_LIMIT)
        size = whole_number(fields[3], "size", NBYTES_LIMIT)
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
