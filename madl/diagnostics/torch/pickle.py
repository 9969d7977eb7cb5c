"""A safe unpickler: dicts, lists, tuples, text and numbers only, in bounded memory.

Python's own unpickler imports and calls what a file names, follows its extension
registry, and allocates what a length claims. Here an opcode means what the table at the
end says, and any other is refused by its name.

A history of a million events is a hundred million opcodes, most of which refer to the
frames of stacks. So a list of references is read in one step, and equal ones are one
list, for a tenth of the memory.
"""

import pickletools
import re
import struct
from collections.abc import Callable
from typing import NoReturn

from madl.diagnostics.traces.lines import RefusedError
from madl.errors import FileFormatError

PICKLE_LIMIT_NBYTES = 1 << 30
TEXT_LIMIT_NBYTES = 1 << 20
"""Of one text."""
CONTAINER_LIMIT = 1 << 22
MEMO_LIMIT = 1 << 23
"""Values that are kept to be used again, at about 100 bytes each."""
OPCODE_LIMIT = 1 << 26
"""Without those in the lists of references that are read as a whole."""
VALUE_LIMIT = 1 << 26
"""Of all containers together, at 8 bytes each; equal lists of references count once."""
NESTING_LIMIT = 64
PENDING_LIMIT = 4096
"""Values below the last one that is added to its container by itself."""
NUMBER_LIMIT_NBYTES = 16
HIGHEST_PROTOCOL = 5

_OPCODES_THAT = {
    "names a function or class to import": ("GLOBAL", "STACK_GLOBAL"),
    "calls a function": ("REDUCE",),
    "makes an object of a class": ("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"),
    "sets the state of an object": ("BUILD",),
    "refers to an object outside the file": ("PERSID", "BINPERSID"),
    "names an entry of the extension registry": ("EXT1", "EXT2", "EXT4"),
    "refers to a buffer outside the file": ("NEXT_BUFFER", "READONLY_BUFFER"),
}
_BATCH = 1000
"""Picklers add so many values at a time; only then there may be more for the list."""
_REFERENCE = rb"(?:h.|j.{4})"
_REFERENCES = re.compile(
    rb"(\x94|q.|r.{4})?(\(%b{1,%d}+e)" % (_REFERENCE, _BATCH - 1), re.DOTALL
)
"""What fills an empty list with what is there already, kept itself or not."""
_INDICES = re.compile(rb"h(.)|j(.{4})", re.DOTALL)
_MEANS = {name: what for what, names in _OPCODES_THAT.items() for name in names}


def read_plain_pickle(data: bytes, path: str = "<bytes>") -> object:
    """Return what a pickle, all of a file, holds.

    Raises:
        FileFormatError: It is broken, larger than the limits above, or holds
            anything but plain containers and scalars. Nothing in it is ever called.
    """
    if len(data) > PICKLE_LIMIT_NBYTES:
        reason = f"it is larger than {PICKLE_LIMIT_NBYTES} bytes"
        raise FileFormatError(path, 0, reason)
    try:
        return _Reader(data).read()
    except RefusedError as refused:
        raise FileFormatError(path, 0, str(refused)) from None


class _Reader:
    """The stack machine of a pickle, as far as plain values need it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[object] = []
        self._below: list[list[object]] = []
        """What lies below each mark."""
        self.memo: dict[int, object] = {}
        self._lists: dict[bytes, list[object]] = {}
        """Lists of references, by the opcodes that fill them."""
        self._shared: set[int] = set()
        """The ids of those lists: nothing is added to them any more."""
        self._containers = 0
        self._values = 0

    def read(self) -> object:
        data, stop = self.data, len(self.data)
        if data[:1] != b"\x80":
            raise RefusedError("this is no pickle of protocol 2 or later")
        for _ in range(OPCODE_LIMIT):
            if self.at >= stop:
                raise RefusedError(f"the pickle ends too early, after {stop} bytes")
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                return self._result()
            action = _ACTIONS.get(code)
            if action is None:
                self._refuse(code)
            action(self)
            if not self._below and len(self.stack) > PENDING_LIMIT:
                raise self._too_deep()
        raise RefusedError(f"the pickle has more than {OPCODE_LIMIT} opcodes")

    def _too_deep(self) -> RefusedError:
        return RefusedError(
            f"more than {PENDING_LIMIT} values wait for their container: "
            "it is nested too deeply"
        )

    def take(self, nbytes: int) -> bytes:
        start = self.at
        if nbytes > len(self.data) - start:
            raise RefusedError(
                f"a length of {nbytes} bytes is claimed at byte {start}, "
                f"but {len(self.data) - start} are left"
            )
        self.at = start + nbytes
        return self.data[start : self.at]

    def byte(self) -> int:
        at = self.at
        if at == len(self.data):
            self.take(1)  # raises
        self.at = at + 1
        return self.data[at]

    def unsigned(self, nbytes: int) -> int:
        return int.from_bytes(self.take(nbytes), "little")

    def begin_list(self) -> None:
        """Make an empty list; fill it, too, where all that follows are references."""
        only = _REFERENCES.match(self.data, self.at)
        if only is None:
            self.push_container([])
            return
        kept, opcodes = only.groups()
        known = self._lists.get(opcodes)
        if known is None:
            self.push_container(values := list[object]())
        else:
            self.stack.append(values := known)
        if kept is not None:
            index = int.from_bytes(kept[1:], "little")
            self.put(index if kept[1:] else len(self.memo))
        if known is None:
            # After it is kept: a list may hold itself.
            self.mark()
            for short, long in _INDICES.findall(opcodes, 1):
                self.get(int.from_bytes(short or long, "little"))
            self.extend_list(self.pop_mark())
            self._lists[opcodes] = values
            self._shared.add(id(values))
        self.at = only.end()

    def push_container(self, value: object) -> None:
        self._containers += 1
        if self._containers > CONTAINER_LIMIT:
            raise RefusedError(f"it holds more than {CONTAINER_LIMIT} containers")
        self.stack.append(value)

    def pop(self) -> object:
        if not self.stack:
            raise RefusedError(f"a value is missing at byte {self.at - 1}")
        return self.stack.pop()

    def mark(self) -> None:
        if len(self._below) == NESTING_LIMIT:
            raise RefusedError(f"it is nested deeper than {NESTING_LIMIT} containers")
        self._below.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[object]:
        if not self._below:
            raise RefusedError(f"a mark is missing at byte {self.at - 1}")
        values = self.stack
        self.stack = self._below.pop()
        return values

    def put(self, index: int) -> None:
        if index in self.memo:
            self._lists.clear()  # their opcodes mean something else from here on
        self.memo[index] = value = self.pop()
        self.stack.append(value)
        if len(self.memo) > MEMO_LIMIT:
            raise RefusedError(f"it keeps more than {MEMO_LIMIT} values for later")

    def get(self, index: int) -> None:
        try:
            self.stack.append(self.memo[index])
        except KeyError:
            raise RefusedError(f"value {index} is used before it is there") from None

    def text(self, nbytes: int) -> None:
        if nbytes > TEXT_LIMIT_NBYTES:
            raise RefusedError(
                f"a text of {nbytes} bytes is claimed at byte {self.at}: at most "
                f"{TEXT_LIMIT_NBYTES} are read"
            )
        # What is not UTF-8 is shown as it is: names of files may be anything.
        self.stack.append(str(self.take(nbytes), "utf-8", "backslashreplace"))

    def number(self, nbytes: int) -> None:
        if nbytes > NUMBER_LIMIT_NBYTES:
            raise RefusedError(
                f"a number of {nbytes} bytes is claimed at byte {self.at}: at most "
                f"{NUMBER_LIMIT_NBYTES} are read"
            )
        self.stack.append(int.from_bytes(self.take(nbytes), "little", signed=True))

    def extend_list(self, values: list[object]) -> None:
        if not self.stack or not isinstance(self.stack[-1], list):
            raise RefusedError(f"values are added to no list at byte {self.at - 1}")
        if id(self.stack[-1]) in self._shared:
            raise RefusedError(
                f"a list is added to after its end at byte {self.at - 1}"
            )
        self._count_values(len(values))
        self.stack[-1].extend(values)

    def last(self, count: int) -> list[object]:
        """Take the last values, which are added to what is below them."""
        if len(self.stack) > PENDING_LIMIT:
            raise self._too_deep()
        return [self.pop() for _ in range(count)][::-1]

    def _count_values(self, count: int) -> None:
        self._values += count
        if self._values > VALUE_LIMIT:
            raise RefusedError(f"it holds more than {VALUE_LIMIT} values")

    def extend_dict(self, pairs: list[object]) -> None:
        into = self.stack[-1] if self.stack else None
        if not isinstance(into, dict) or len(pairs) % 2:
            raise RefusedError(f"pairs are added to no dict at byte {self.at - 1}")
        self._count_values(len(pairs))
        for key in pairs[::2]:
            if not isinstance(key, str | int):
                kind = type(key).__name__
                reason = f"a dict's keys must be text or integers, got {kind}"
                raise RefusedError(reason)
        into.update(zip(pairs[::2], pairs[1::2], strict=True))

    def tuple_of(self, values: list[object]) -> None:
        # Tuples of tuples could be nested without end, and hashed to the same depth.
        if any(isinstance(value, list | dict | tuple) for value in values):
            raise RefusedError("a tuple must hold text and numbers only")
        self.push_container(tuple(values))

    def check_protocol(self) -> None:
        protocol = self.unsigned(1)
        if protocol > HIGHEST_PROTOCOL:
            raise RefusedError(f"protocol {protocol} is not known")

    def frame(self) -> None:
        nbytes = self.unsigned(8)
        if nbytes > len(self.data) - self.at:
            raise RefusedError(
                f"a frame of {nbytes} bytes is claimed, but "
                f"{len(self.data) - self.at} are left"
            )

    def _result(self) -> object:
        if len(self.stack) != 1 or self._below:
            raise RefusedError("it ends with values that belong to no container")
        if self.at != len(self.data):
            raise RefusedError(f"there is data after its end, at byte {self.at}")
        return self.stack[0]

    def _refuse(self, code: int) -> NoReturn:
        name = _NAMES.get(code)
        if name is None:
            raise RefusedError(f"byte {self.at - 1} is {code:#04x}: not an opcode")
        raise RefusedError(
            f"{name} at byte {self.at - 1} {_MEANS.get(name, 'is no plain value')}; "
            "only dicts, lists, tuples, text and numbers are read"
        )


_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_CODES = {name: code for code, name in _NAMES.items()}
_STOP = _CODES["STOP"]
_BY_NAME: dict[str, Callable[[_Reader], None]] = {
    "PROTO": _Reader.check_protocol,
    "FRAME": _Reader.frame,
    "MARK": _Reader.mark,
    "NONE": lambda reader: reader.stack.append(None),
    "NEWTRUE": lambda reader: reader.stack.append(True),
    "NEWFALSE": lambda reader: reader.stack.append(False),
    "BININT": lambda reader: reader.number(4),
    "BININT1": lambda reader: reader.stack.append(reader.byte()),
    "BININT2": lambda reader: reader.stack.append(reader.unsigned(2)),
    "LONG1": lambda reader: reader.number(reader.byte()),
    "LONG4": lambda reader: reader.number(reader.unsigned(4)),
    "BINFLOAT": lambda reader: reader.stack.append(
        struct.unpack(">d", reader.take(8))[0]
    ),
    "SHORT_BINUNICODE": lambda reader: reader.text(reader.byte()),
    "BINUNICODE": lambda reader: reader.text(reader.unsigned(4)),
    "BINUNICODE8": lambda reader: reader.text(reader.unsigned(8)),
    "EMPTY_LIST": _Reader.begin_list,
    "EMPTY_DICT": lambda reader: reader.push_container({}),
    "EMPTY_TUPLE": lambda reader: reader.tuple_of([]),
    "TUPLE": lambda reader: reader.tuple_of(reader.pop_mark()),
    "TUPLE1": lambda reader: reader.tuple_of(reader.last(1)),
    "TUPLE2": lambda reader: reader.tuple_of(reader.last(2)),
    "TUPLE3": lambda reader: reader.tuple_of(reader.last(3)),
    "APPEND": lambda reader: reader.extend_list(reader.last(1)),
    "APPENDS": lambda reader: reader.extend_list(reader.pop_mark()),
    "SETITEM": lambda reader: reader.extend_dict(reader.last(2)),
    "SETITEMS": lambda reader: reader.extend_dict(reader.pop_mark()),
    "BINPUT": lambda reader: reader.put(reader.byte()),
    "LONG_BINPUT": lambda reader: reader.put(reader.unsigned(4)),
    "MEMOIZE": lambda reader: reader.put(len(reader.memo)),
    "BINGET": lambda reader: reader.get(reader.byte()),
    "LONG_BINGET": lambda reader: reader.get(reader.unsigned(4)),
}
_ACTIONS = {_CODES[name]: action for name, action in _BY_NAME.items()}
