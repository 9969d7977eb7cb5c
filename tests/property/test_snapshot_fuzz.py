"""Snapshots and traces that were damaged: errors are madl's own, and nothing else."""

import random

import pytest

from madl import MadlError, OutOfMemoryError
from madl.diagnostics.histories import open_history
from madl.diagnostics.page_data import page_data
from madl.diagnostics.whatif_report import what_if
from tests.torch_dumps import fragmented

MUTATIONS = 2_500
"""Of each kind of file by each test: 10,000 in all."""
TRACE = b"# madl-trace v1\n" + b"".join(
    b"a,%d,%d,%d,tag%d\n" % (n, 1 << n, n % 3, n % 2) + (b"f,%d\n" % (n // 2)) * (n % 2)
    for n in range(20)
)
FILES = {
    "snapshot": fragmented().pickled(4),
    "old snapshot": fragmented().pickled(2),
    "trace": TRACE,
}


def mutated(data: bytes, random_: random.Random) -> bytes:
    """Return the data with some bytes changed, cut, doubled, or moved."""
    changed = bytearray(data)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(changed) or 1)
        stop = at + random_.randint(1, 12)
        kind = random_.randrange(6)
        if kind == 0:
            changed[at:stop] = random_.randbytes(stop - at)
        elif kind == 1:
            del changed[at:stop]
        elif kind == 2:
            changed[at:at] = changed[at:stop]
        elif kind == 3 and at < len(changed):
            changed[at] ^= 1 << random_.randrange(8)
        elif kind == 4:
            changed[at:at] = random_.choice(OPCODES)
        else:
            del changed[random_.randrange(len(changed) or 1) :]
    return bytes(changed)


OPCODES = [
    b"cos\nsystem\n",
    b"\x8c\x02os\x8c\x06system\x93",
    b"R",
    b"\x8d" + (10 << 30).to_bytes(8, "little"),
    b"\x82\x01",
    b"]" * 50,
    b"J\xff\xff\xff\xff",
    b"\x8a\x09" + b"\xff" * 9,
]


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("consumer", [open_history, what_if])
def test_a_damaged_file_gives_errors_of_madl_only(kind: str, consumer: object) -> None:
    assert callable(consumer)
    random_, refused = random.Random(f"{kind} {consumer}"[:20]), 0

    for _ in range(MUTATIONS):
        data = mutated(FILES[kind], random_)
        try:
            found = consumer(data)
            if consumer is open_history:
                page_data(found)
        except OutOfMemoryError:
            pass  # what is asked for may have grown
        except MadlError:
            refused += 1

    assert 0 < refused < MUTATIONS
