"""Pickles that hold plain values, and those that are refused."""

import os
import pickle
import tracemalloc
from collections import OrderedDict
from copyreg import add_extension, remove_extension
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madl import FileFormatError
from madl.diagnostics.torch import pickle as plain_pickle
from madl.diagnostics.torch.pickle import read_plain_pickle

scalars = (
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=20)
) | st.integers(-(1 << 127), (1 << 127) - 1)
plain = st.recursive(
    scalars | st.tuples(scalars, scalars) | st.lists(scalars, max_size=4).map(tuple),
    lambda inside: (
        st.lists(inside, max_size=5)
        | st.dictionaries(st.text(max_size=5) | st.integers(-9, 9), inside, max_size=5)
    ),
    max_leaves=30,
)


def refusal(data: bytes) -> str:
    with pytest.raises(FileFormatError) as caught:
        read_plain_pickle(data, "x.pickle")
    text = str(caught.value)
    assert "\n" not in text
    return text.removeprefix("x.pickle: ")


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x04" + b"".join(parts)


class Reduced:
    """What its class's unpickling would do."""

    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> Any:  # noqa: ANN401  # pickle's protocol
        return self.call[0], tuple(self.call[1:])


@given(value=plain, protocol=st.sampled_from([2, 3, 4, 5]))
def test_plain_values_are_read_as_they_were_written(
    value: object, protocol: int
) -> None:
    assert read_plain_pickle(pickle.dumps(value, protocol)) == value


def test_what_stands_in_several_places_is_one_object() -> None:
    shared = [1]

    read = read_plain_pickle(pickle.dumps([shared, shared]))

    assert isinstance(read, list)
    assert read[0] is read[1]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_call_is_refused_by_name_and_not_made(protocol: int, tmp_path: Any) -> None:  # noqa: ANN401  # a Path
    made = tmp_path / "made"
    data = pickle.dumps({"segments": Reduced(os.system, f"touch {made}")}, protocol)

    text = refusal(data)

    assert "GLOBAL at byte" in text
    assert "names a function or class to import" in text
    assert not made.exists()


def test_a_call_inside_a_call_is_refused() -> None:
    inner = Reduced(eval, "1 + 1")

    assert "GLOBAL" in refusal(pickle.dumps([{"a": Reduced(exec, inner)}], 4))


@pytest.mark.parametrize(
    "value", [date(2026, 1, 1), OrderedDict(a=1), b"bytes", {1, 2}, 1j, frozenset()]
)
def test_what_is_not_plain_is_refused(value: object) -> None:
    assert "only dicts, lists, tuples, text and numbers are read" in refusal(
        pickle.dumps(value, 4)
    )


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"Pid\n.", "PERSID"),
        (b"K\x01Q.", "BINPERSID"),
        (b"\x82\x01.", "EXT1"),
        (b"\x83\x01\x00.", "EXT2"),
        (b"\x84\x01\x00\x00\x00.", "EXT4"),
        (b"\x97.", "NEXT_BUFFER"),
        (b"K\x01\x98.", "READONLY_BUFFER"),
        (b"\x96" + bytes(8) + b".", "BYTEARRAY8"),
        (b"cos\nsystem\n.", "GLOBAL"),
        (b"\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL"),
        (b"(ios\nsystem\n.", "INST"),
        (b"(o.", "OBJ"),
        (b")\x81.", "NEWOBJ"),
        (b")}\x92.", "NEWOBJ_EX"),
        (b"}}b.", "BUILD"),
        (b"))R.", "REDUCE"),
        (b"I1\n.", "INT"),
        (b"K\x010.", "POP"),
    ],
)
def test_every_opcode_that_is_not_plain_is_refused_by_its_name(
    data: bytes, name: str
) -> None:
    assert refusal(opcodes(data)).startswith(f"{name} at byte ")


def test_an_entry_of_the_extension_registry_is_refused_also_when_it_is_cached() -> None:
    add_extension("datetime", "date", 200)
    try:
        data = pickle.dumps(date, 2)
        assert pickle.loads(data) is date
        assert refusal(data).startswith("EXT1 at byte 2")
    finally:
        remove_extension("datetime", "date", 200)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x8d" + (10 << 30).to_bytes(8, "little"), "a text of 10737418240 bytes"),
        (b"X" + (1 << 31).to_bytes(4, "little"), "a text of 2147483648 bytes"),
        (b"X" + (1000).to_bytes(4, "little"), "a length of 1000 bytes is claimed"),
        (b"\x8b" + (1 << 30).to_bytes(4, "little"), "a number of 1073741824 bytes"),
        (b"\x95" + (10 << 30).to_bytes(8, "little"), "a frame of 10737418240 bytes"),
    ],
)
def test_a_claimed_length_is_refused_before_anything_is_allocated(
    data: bytes, reason: str
) -> None:
    tracemalloc.start()
    try:
        text = refusal(opcodes(data, b"abc"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert text.startswith(reason)
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "data",
    [
        b"]" * 200_000 + b"a" * 199_999 + b".",
        b"(" * 200_000 + b".",
        b"(}" * 200_000 + b".",
        b"]\x94" * 200_000,
        b"K\x01" * 200_000,
    ],
)
def test_deep_nesting_is_refused(data: bytes) -> None:
    assert "nested" in refusal(opcodes(data))


def test_tuples_of_tuples_are_refused() -> None:
    assert refusal(opcodes(b")" + b"\x85" * 100_000 + b".")) == (
        "a tuple must hold text and numbers only"
    )


def test_a_memo_at_a_huge_index_costs_nothing() -> None:
    assert read_plain_pickle(opcodes(b"]r\xff\xff\xff\xff.")) == []


def test_keys_are_text_or_integers() -> None:
    assert refusal(pickle.dumps({(1, 2): 3}, 4)) == (
        "a dict's keys must be text or integers, got tuple"
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "this is no pickle of protocol 2 or later"),
        (b"(dp0\n.", "this is no pickle of protocol 2 or later"),
        (b"\x80\x09.", "protocol 9 is not known"),
        (b"\x80\x04", "the pickle ends too early, after 2 bytes"),
        (b"\x80\x04.", "it ends with values that belong to no container"),
        (b"\x80\x04]].", "it ends with values that belong to no container"),
        (b"\x80\x04].more", "there is data after its end, at byte 4"),
        (b"\x80\x04\xff", "byte 2 is 0xff: not an opcode"),
        (b"\x80\x04h\x05.", "value 5 is used before it is there"),
        (b"\x80\x04\x94.", "a value is missing at byte 2"),
        (b"\x80\x04a.", "a value is missing at byte 2"),
        (b"\x80\x04e.", "a mark is missing at byte 2"),
        (b"\x80\x04K\x01K\x02a.", "values are added to no list at byte 6"),
        (b"\x80\x04}(K\x01u.", "pairs are added to no dict at byte 6"),
    ],
)
def test_a_broken_pickle_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    assert refusal(data) == reason


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [
        ("PICKLE_LIMIT_NBYTES", "abc", "it is larger than 3 bytes"),
        ("CONTAINER_LIMIT", [[], [], [], []], "it holds more than 3 containers"),
        ("MEMO_LIMIT", [[], [], []], "it keeps more than 3 values for later"),
        ("OPCODE_LIMIT", [1, 2, 3], "the pickle has more than 3 opcodes"),
        ("VALUE_LIMIT", [1, 2, 3, 4], "it holds more than 3 values"),
        ("VALUE_LIMIT", {1: 2, 3: 4}, "it holds more than 3 values"),
    ],
)
def test_the_size_of_all_is_bounded(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: object, reason: str
) -> None:
    monkeypatch.setattr(plain_pickle, limit, 3)

    assert refusal(pickle.dumps(value, 4)) == reason


def test_text_that_is_not_utf_8_is_kept_visible() -> None:
    assert read_plain_pickle(opcodes(b"\x8c\x02a\xff.")) == "a\\xff"


def history(events: int, depth: int) -> list[Any]:
    """Return events each of which has a list of its own of the same frames."""
    frames = [{"line": number} for number in range(300)]
    stacks = [frames[start : start + depth] for start in (0, 300 - depth)]
    return [
        {"time": number, "frames": list(stacks[number % 2])} for number in range(events)
    ]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("depth", [0, 1, 2, 60, 299])
def test_lists_of_references_are_read_as_they_were_written(
    protocol: int, depth: int
) -> None:
    value = history(50, depth)

    assert read_plain_pickle(pickle.dumps(value, protocol)) == value


def test_a_list_of_a_thousand_references_and_more_is_read_in_parts() -> None:
    one: dict[str, int] = {}
    value = [[one] * count for count in (999, 1000, 1001, 2001, 1001)]

    assert read_plain_pickle(pickle.dumps([one, value], 4)) == [one, value]


def test_equal_stacks_are_one_list_and_cost_no_opcodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = pickle.dumps(history(1000, 100), 4)
    monkeypatch.setattr(plain_pickle, "OPCODE_LIMIT", 20_000)
    monkeypatch.setattr(plain_pickle, "VALUE_LIMIT", 10_000)

    read: Any = read_plain_pickle(data)

    assert read[2]["frames"] is read[4]["frames"]
    assert read[2]["frames"] is not read[3]["frames"]


def test_a_list_that_holds_itself_is_read() -> None:
    value: list[object] = [{}]
    value += [value[0], value]

    read: Any = read_plain_pickle(pickle.dumps([{}, value], 4))

    assert read[1][2] is read[1]


def test_a_list_of_what_was_kept_anew_is_another_list() -> None:
    data = opcodes(
        b"](",
        b"X\x01\0\0\0aq\x01](h\x01e",  # a, kept as 1, and a list of it
        b"X\x01\0\0\0bq\x01](h\x01e",  # b is 1 from here on
        b"e.",
    )

    assert read_plain_pickle(data) == ["a", ["a"], "b", ["b"]]


def test_a_list_that_may_be_in_two_places_is_not_added_to() -> None:
    shared = b"X\x01\0\0\0aq\x01](h\x01eq\x02"

    assert refusal(opcodes(b"](", shared, b"h\x02(h\x01ee.")).startswith(
        "a list is added to after its end at byte "
    )


def test_a_container_that_is_filled_in_one_step_is_read() -> None:
    """As PyTorch's pickler in C++ writes: it begins no new step after a thousand."""
    dicts = b"".join(
        b"}(K\x01M" + n.to_bytes(2, "little") + b"u" for n in range(20_000)
    )

    read: Any = read_plain_pickle(opcodes(b"](", dicts, b"e."))

    assert [one[1] for one in read] == list(range(20_000))
