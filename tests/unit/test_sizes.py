"""Byte counts: what is read, what is refused, and how they are printed."""

import sys

import numpy as np
import pytest

from madl.sizes import (
    ADDRESS_SPACE_NBYTES,
    align_up,
    check_alignment,
    format_at_least,
    format_exactly,
    format_nbytes,
    parse_nbytes,
)

needs_64_bits = pytest.mark.skipif(
    ADDRESS_SPACE_NBYTES < 1 << 64, reason="there are not so many addresses"
)


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("0", 0),
        ("17 B", 17),
        ("64 MiB", 64 << 20),
        ("64MB", 64_000_000),
        ("1.5 GiB", 3 << 29),
        ("0.5kib", 512),
        pytest.param("  2 TiB\t", 2 << 40, marks=needs_64_bits),
        pytest.param("1 PB", 10**15, marks=needs_64_bits),
        (" 2 MiB\t", 2 << 20),
        (ADDRESS_SPACE_NBYTES - 1, ADDRESS_SPACE_NBYTES - 1),
    ],
)
def test_a_byte_count_is_read(value: int | str, nbytes: int) -> None:
    assert parse_nbytes(value) == nbytes


def test_whatever_has_an_index_is_a_byte_count() -> None:
    assert parse_nbytes(np.int32(7)) == 7  # type: ignore[arg-type]  # as users do


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "got True (bool)"),
        (1.0, "got 1.0 (float)"),
        (float("nan"), "got nan (float)"),
        (None, "got None (NoneType)"),
        (b"64", "got b'64' (bytes)"),
    ],
)
def test_what_is_no_whole_number_is_a_type_error(value: int, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        parse_nbytes(value)

    assert str(caught.value) == (
        f"nbytes must be an int or a text such as '64 MiB', {text}"
    )


@pytest.mark.parametrize(
    "text", ["64 mb/s", "", "MiB", "-1", "1e6", "1.", ".5 KiB", "1 KiB 2", "0x10"]
)
def test_a_text_that_is_no_byte_count_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="byte count") as caught:
        parse_nbytes(text)

    assert str(caught.value) == (
        f"nbytes must be a byte count such as '64 MiB', '64MB' or '4096', got {text!r}"
    )


def test_a_part_of_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="whole") as caught:
        parse_nbytes("0.3 B")

    assert str(caught.value) == "nbytes must be a whole number of bytes, got '0.3 B'"


def test_what_a_report_prints_can_be_given_back() -> None:
    assert parse_nbytes("2.4 GiB") == 2576980377


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="negative") as caught:
        parse_nbytes(-3, name="keep")

    assert str(caught.value) == "keep must not be negative, got -3"


@pytest.mark.parametrize("value", [ADDRESS_SPACE_NBYTES, f"{ADDRESS_SPACE_NBYTES}"])
def test_more_than_the_address_space_overflows(value: int | str) -> None:
    with pytest.raises(OverflowError) as caught:
        parse_nbytes(value)

    assert str(caught.value) == (
        f"nbytes must fit the address space, got {2 * sys.maxsize + 2} "
        f"of at most {2 * sys.maxsize + 1}"
    )


def test_a_number_too_long_to_print_overflows_too() -> None:
    with pytest.raises(OverflowError, match=r"got 2\*\*20000 or more of at most"):
        parse_nbytes(1 << 20_000)


@pytest.mark.parametrize("nbytes", [(1 << 64) - 1, 1 << 64, 1 << 70])
def test_what_no_address_space_holds_is_printed_all_the_same(nbytes: int) -> None:
    assert format_exactly(nbytes).startswith(format_nbytes(nbytes))
    assert format_at_least(nbytes).endswith(" PiB")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (1 << 40, "1.0 TiB"),
        (1 << 50, "1.0 PiB"),
        (5 << 60, "5120.0 PiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_a_byte_count_is_printed(nbytes: int, text: str) -> None:
    assert format_nbytes(nbytes) == text


@pytest.mark.parametrize(
    ("nbytes", "aligned"), [(0, 0), (1, 512), (512, 512), (513, 1024)]
)
def test_align_up_returns_the_next_multiple(nbytes: int, aligned: int) -> None:
    assert align_up(nbytes, 512) == aligned


@pytest.mark.parametrize(
    ("alignment", "checked"), [(None, 0), (0, 0), (1, 1), (4096, 4096)]
)
def test_an_alignment_is_zero_or_a_power_of_two(
    alignment: int | None, checked: int
) -> None:
    assert check_alignment(alignment) == checked


@pytest.mark.parametrize(
    ("alignment", "error", "text"),
    [
        (48, ValueError, "alignment must be a power of two, got 48"),
        (-8, ValueError, "alignment must not be negative, got -8"),
        (
            True,
            TypeError,
            "alignment must be an int or a text such as '64 MiB', got True (bool)",
        ),
    ],
)
def test_any_other_alignment_is_refused(
    alignment: int, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        check_alignment(alignment)

    assert str(caught.value) == text
