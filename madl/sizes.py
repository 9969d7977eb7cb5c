"""Byte counts: parse ``"64 MiB"``, format, round up to an alignment.

Every size in madl is an ``int`` in bytes.
"""

import operator
import re
import sys

ADDRESS_SPACE_NBYTES = 2 * sys.maxsize + 2
"""One more than the largest address of this process, in bytes."""

_UNITS: dict[str, int] = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", 1)},
    **{f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGTP", 1)},
}
_BYTE_COUNT = re.compile(
    r"\s*(\d{1,40}(?:\.\d{1,40})?)\s*([KMGTP]?I?B|)\s*", re.IGNORECASE
)


def parse_nbytes(value: int | str, *, name: str = "nbytes") -> int:
    """Return a byte count as an int.

    Args:
        value: An int, anything with ``__index__`` (a NumPy integer), or a text such
            as ``"64 MiB"`` (1024-based), ``"64MB"`` (1000-based) or ``"4096"``. Part
            of a byte is dropped: ``"0.9 GiB"`` is 966367641.
        name: What the caller calls the value; the errors use it.

    Raises:
        TypeError: A bool, a float, or anything else that is not a whole number.
        ValueError: Negative, or a text that is no byte count.
        OverflowError: Larger than the address space of this process.

    >>> parse_nbytes("1.5 GiB")
    1610612736
    >>> parse_nbytes("64MB")
    64000000
    """
    if isinstance(value, str):
        nbytes = _parse_text(value, name)
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"{name} must be an int or a text such as '64 MiB', "
            f"got {value!r} ({type(value).__name__})"
        )
    else:
        nbytes = operator.index(value)
    if nbytes < 0:
        raise ValueError(f"{name} must not be negative, got {nbytes}")
    if nbytes >= ADDRESS_SPACE_NBYTES:
        # int refuses to print what has more than 4300 digits.
        power = nbytes.bit_length() - 1
        got = nbytes if power < 128 else f"2**{power} or more"
        raise OverflowError(
            f"{name} must fit the address space, "
            f"got {got} of at most {ADDRESS_SPACE_NBYTES - 1}"
        )
    return nbytes


def _parse_text(text: str, name: str) -> int:
    match = _BYTE_COUNT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{name} must be a byte count such as '64 MiB', '64MB' or '4096', "
            f"got {text!r}"
        )
    number, unit = match.group(1), match.group(2)
    whole, _, decimals = str(number).partition(".")
    scale: int = 10 ** len(decimals)
    nbytes, rest = divmod(int(whole + decimals) * _UNITS[unit.upper()], scale)
    if rest and not unit.strip("Bb"):
        raise ValueError(f"{name} must be a whole number of bytes, got {text!r}")
    return nbytes


def format_nbytes(nbytes: int) -> str:
    """Return a byte count as people read it, 1024-based.

    >>> format_nbytes(1536), format_nbytes(0), format_nbytes(3 << 30)
    ('1.5 KiB', '0 B', '3.0 GiB')
    """
    if abs(nbytes) < 1024:
        return f"{nbytes} B"
    scaled = float(nbytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        scaled /= 1024
        # 1023.95 would print as "1024.0", which belongs to the next unit.
        if abs(scaled) < 1023.95:
            return f"{scaled:.1f} {unit}"
    return f"{scaled / 1024:.1f} PiB"


def format_exactly(nbytes: int) -> str:
    """Return a byte count that can be told from its neighbours.

    >>> format_exactly(1536), format_exactly(1537)
    ('1.5 KiB', '1.5 KiB (1537 B)')
    """
    text = format_nbytes(nbytes)
    return text if _parse_text(text, "nbytes") == nbytes else f"{text} ({nbytes} B)"


def format_at_least(nbytes: int) -> str:
    """Return a byte count that, read again, is not below ``nbytes``.

    >>> format_at_least(1537)
    '1.6 KiB'
    """
    rounded = nbytes
    while _parse_text(text := format_nbytes(rounded), "nbytes") < nbytes:
        rounded += max(nbytes // 100, 1)
    return text


def align_up(nbytes: int, alignment: int) -> int:
    """Return the smallest multiple of ``alignment`` that is not below ``nbytes``.

    >>> align_up(513, 512)
    1024
    """
    return (nbytes + alignment - 1) // alignment * alignment


def check_alignment(alignment: int | None) -> int:
    """Return a requested alignment in bytes; 0 stands for the device's default.

    Raises:
        TypeError: Not a whole number.
        ValueError: Not a power of two.
    """
    if alignment is None:
        return 0
    wanted = parse_nbytes(alignment, name="alignment")
    if wanted & (wanted - 1):
        raise ValueError(f"alignment must be a power of two, got {wanted}")
    return wanted
