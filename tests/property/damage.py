"""Damage to files, as disks, networks and malice do it; the same for the same seed."""

import random

INTERESTING = (
    b"",
    b"\0",
    b"\n",
    b",",
    b"-1",
    b"0x",
    b"9" * 30,
    b"9" * 5000,
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"[" * 50,
    b'"\\ud800"',
    b"1e999",
    b"NaN",
    (1 << 63).to_bytes(8, "little"),
    (1 << 64).to_bytes(9, "little"),
    b"\x1f\x8b",
    b"cos\nsystem\n",
    b"\x8c\x02os\x8c\x06system\x93",
    b"R",
    b"\x8d" + (10 << 30).to_bytes(8, "little"),
    b"\x82\x01",
    b"]" * 50,
    b"J\xff\xff\xff\xff",
    b"\x8a\x08" + b"\xff" * 6 + b"\0\0",
    b"\x8a\x09" + b"\xff" * 9,
)


def damaged(content: bytes, seed: int) -> bytes:
    """Return the content after one to four changes."""
    random_ = random.Random(seed)
    changed = bytearray(content)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(changed) + 1)
        stop = min(at + random_.choice((1, 1, 2, 8, 16, 100)), len(changed))
        match random_.randrange(6):
            case 0:
                changed[at:stop] = random_.randbytes(stop - at)
            case 1:
                del changed[at : random_.choice((stop, stop, stop, None))]
            case 2:
                changed[at:at] = random_.choice(INTERESTING)
            case 3:
                changed[at:stop] = random_.choice(INTERESTING)
            case 4:
                changed[at:at] = changed[at:stop]
            case _:
                if at < len(changed):
                    changed[at] ^= 1 << random_.randrange(8)
    return bytes(changed)
