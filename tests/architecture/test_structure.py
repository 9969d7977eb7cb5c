"""The shape of the package: who knows what of whom, and how far one call goes."""

import ast
import contextlib
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from madl import Pool, hotpath
from madl.backends.sim import SimBackend
from tests.architecture.modules import FILES, PACKAGE

MIB = 1 << 20
FLAT = {"__init__", "__main__", "sizes", "stacks"}
"""The modules that lie beside the packages."""
SHORT_LINES, MOST_SHORT = 60, 30
MOST_LINES_OF_FALLBACK = 600
MOST_PRIVATE_NAMES = 25
MOST_CLASSES = 3

PRIVATE_OF_OTHERS = {
    "_C": "PyTorch's compiled part, which has no public name",
    "_asdict": "of every NamedTuple",
    "_fields": "of every NamedTuple",
    "_getframe": "of sys",
    "_memory_manager": "Numba's, which has no public name",
    "_replace": "of every NamedTuple",
    "_value_": "of every enum: an & of two flags costs more than one of two ints",
}
"""What private names madl may read of others, and why."""

LOOKED_UP = {
    "F_ADD_SEALS": "an operating system's",
    "__array_interface__": "a protocol of arrays",
    "__cuda_array_interface__": "a protocol of arrays",
    "__dlpack__": "a protocol of arrays",
    "__dlpack_device__": "a protocol of arrays",
    "__index__": "what counts as an int",
    "__int__": "what counts as a number",
    "__len__": "a shape of several dimensions, or one number",
    "_asdict": "whether a tuple has names",
    "_content": "an object whose __init__ failed has none when it ends",
    "_cuda_customAllocator": "some builds of PyTorch are without",
    "_file": "an object whose __init__ failed has none when it ends",
    "dtype": "a model of an array",
    "getPtr": "the stream of a library that has no protocol",
    "getandroidapilevel": "an operating system's",
    "gpu_data": "Numba's array of a device",
    "memfd_create": "an operating system's",
    "mmap64": "an operating system's",
    "preadv": "an operating system's",
    "register_at_fork": "an operating system's",
    "shape": "a model of an array",
}
"""What ``hasattr`` may look for, and what that is."""
PASSED_ON = {
    "backends/protocol.py": "names what a backend lacks of a protocol",
    "backends/registry.py": "looks at what plugins and other libraries hand in",
    "testing/walk.py": "stands for any backend, and passes every call on",
}
"""Modules that may look up any name, and why."""


COUNTED = pytest.mark.skipif(
    hotpath.IS_COMPILED, reason="counts frames, and compiled functions have none"
)


def place_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def top_of(place: str) -> str:
    """Return the top-level package of a file, or the module itself."""
    return place.partition("/")[0]


@cache
def trees() -> dict[str, ast.Module]:
    return {place_of(path): ast.parse(path.read_text("utf-8")) for path in FILES}


@cache
def texts() -> dict[str, str]:
    """Return the sources of both kinds: there is no syntax tree of Cython."""
    paths = [*FILES, *PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxd")]
    return {place_of(path): path.read_text("utf-8") for path in sorted(paths)}


def is_private(name: object) -> bool:
    return isinstance(name, str) and bool(re.match(r"_[^_]|__.*[^_]$", name))


def names_defined_in(tree: ast.AST) -> Iterator[str]:
    """Yield each name that some scope, class or object gets there."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(ast.Name("self" | "cls"), name, ast.Store())
                | ast.alias(asname=str(name))
                | ast.alias(name=name)
            ):
                yield name
            case ast.Assign([ast.Name("__slots__")], value):
                parts = list(ast.walk(value))
                yield from (str(p.value) for p in parts if isinstance(p, ast.Constant))


def names_of(nodes: list[ast.expr]) -> list[str]:
    return [node.id for node in nodes if isinstance(node, ast.Name)]


def is_own(node: ast.expr) -> bool:
    """Return whether it is the object, or the class, whose method the code is in."""
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def reads_of_private() -> Iterator[tuple[str, ast.Attribute]]:
    """Yield where a private attribute of another object is read, not of its own."""
    for place, tree in trees().items():
        attributes = (one for one in ast.walk(tree) if isinstance(one, ast.Attribute))
        for one in attributes:
            if is_private(one.attr) and not is_own(one.value):
                yield place, one


@cache
def defined() -> dict[str, set[str]]:
    """Return the names that each top-level package defines."""
    found: dict[str, set[str]] = defaultdict(set)
    for place, tree in trees().items():
        found[top_of(place)].update(names_defined_in(tree))
    return found


def test_no_package_reads_a_private_attribute_of_another() -> None:
    found = [
        f"madl/{place}:{node.lineno}: {ast.unparse(node)}"
        for place, node in reads_of_private()
        if node.attr not in defined()[top_of(place)] | set(PRIVATE_OF_OTHERS)
    ]

    assert found == [], "give it a public name, or a function beside its class"


@pytest.mark.parametrize("name", PRIVATE_OF_OTHERS)
def test_each_private_name_that_may_be_read_is(name: str) -> None:
    read = {node.attr for _, node in reads_of_private()}

    assert name in read, "it needs no place in the list"


def private_names_of(node: ast.ClassDef) -> set[str]:
    """Return its private methods, attributes of the class, and those set on self."""
    found = set()
    for part in node.body:
        match part:
            case ast.FunctionDef(name=name) | ast.AnnAssign(ast.Name(name)):
                found.add(name)
            case ast.Assign(targets):
                found.update(names_of(targets))
    for attribute in ast.walk(node):
        match attribute:
            case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                found.add(name)
    return set(filter(is_private, found))


def classes_of_the_pool() -> Iterator[tuple[str, ast.ClassDef]]:
    for place, tree in trees().items():
        if top_of(place) == "pool":
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    yield f"madl/{place}: {node.name}", node


def test_no_class_of_the_pool_has_too_many_private_names() -> None:
    counts = {name: len(private_names_of(node)) for name, node in classes_of_the_pool()}

    assert counts
    large = {name: many for name, many in counts.items() if many > MOST_PRIVATE_NAMES}
    assert large == {}, "give a part of it to an object with a public face"


def test_no_class_of_the_pool_forwards_what_it_does_not_have() -> None:
    found = [
        name
        for name, node in classes_of_the_pool()
        if {"__getattr__", "__getattribute__"} & set(names_defined_in(node))
    ]

    assert found == [], "write the calls that it passes on"


@pytest.mark.parametrize("debug", [False, True])
def test_few_classes_are_behind_one_pool(debug: bool) -> None:
    with Pool("cpu", debug=debug) as pool:
        kinds = type(pool).__mro__

    ours = [kind.__qualname__ for kind in kinds if kind.__module__.startswith("madl")]
    assert len(ours) <= MOST_CLASSES, f"hold an object instead of deriving: {ours}"


LOOK_UP = re.compile(
    r"""(?:hasattr\(\s*[^,]+|getattr\([^,]*(?:inner|backend)[^,]*),\s*["']?(\w+)"""
)


def test_no_ability_of_a_backend_is_looked_up_by_name() -> None:
    found = [
        f"madl/{place}: {match[0]}"
        for place, text in texts().items()
        if place not in PASSED_ON
        for match in LOOK_UP.finditer(text)
        if match[1] not in LOOKED_UP
    ]

    assert found == [], "declare it in backends/protocol.py, with its capability"


@pytest.mark.parametrize("name", LOOKED_UP)
def test_each_name_that_may_be_looked_up_is(name: str) -> None:
    assert any(
        match[1] == name
        for text in texts().values()
        for match in LOOK_UP.finditer(text)
    ), "it needs no place in the list"


def test_few_modules_lie_beside_the_packages() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == FLAT


def test_few_modules_are_too_short_for_an_idea() -> None:
    lines = {place: text.count("\n") for place, text in texts().items()}
    short = [
        place
        for place, count in lines.items()
        if place.endswith(".py") and count < SHORT_LINES
    ]

    assert len(short) <= MOST_SHORT, f"merge those of one idea: {short}"


def test_the_fallback_is_small() -> None:
    assert texts()["hotpath/fallback.py"].count("\n") <= MOST_LINES_OF_FALLBACK


DEVICE = re.compile(r"madl\.backends\.(cuda|opencl|host)\b")


def imports_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_device_is_named_outside_of_backends_and_integrations() -> None:
    found = [
        f"madl/{place}: {name}"
        for place, tree in trees().items()
        if top_of(place) not in ("backends", "integrations")
        for name in imports_of(tree)
        if DEVICE.match(name)
    ]
    found += [
        f"madl/{place}"
        for place, text in texts().items()
        if not place.endswith(".py") and DEVICE.search(text)
    ]

    assert found == [], "ask the registry, or the backend that the pool has"


class Hops:
    """Counts the files that a call goes through, and how often it changes file."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.changes = 0
        self._last = ""

    def see(self, frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401  # as sys.setprofile has it
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(PACKAGE)):
            self.files.add(file)
            self.changes += file != self._last
            self._last = file


def hops_of(act: Callable[[], object]) -> Hops:
    hops = Hops()
    before = sys.getprofile()
    sys.setprofile(hops.see)
    try:
        with contextlib.suppress(MemoryError):
            act()
    finally:
        sys.setprofile(before)
    return hops


def check_hops(act: Callable[[], object], *, files: int, changes: int) -> None:
    hops = hops_of(act)
    assert hops.files, "madl was not called"
    names = sorted(Path(file).relative_to(PACKAGE).as_posix() for file in hops.files)
    assert len(names) <= files, f"{len(names)} files: {names}"
    assert hops.changes <= changes, f"{hops.changes} changes of file: {names}"


def make_pool(limit: str | None = None) -> Pool:
    return Pool(SimBackend(total_nbytes=64 * MIB), limit=limit)


@COUNTED
def test_an_allocation_that_grows_goes_through_few_files() -> None:
    pool = make_pool()
    held = [make_pool().allocate(3 * MIB), pool.allocate(3 * MIB)]  # imports are done

    def act() -> None:
        held.append(pool.allocate(5 * MIB))

    check_hops(act, files=12, changes=30)


@COUNTED
def test_running_out_of_memory_goes_through_few_files() -> None:
    def prepare() -> tuple[Pool, list[object]]:
        pool = make_pool(limit="20 MiB")
        return pool, [pool.allocate(15 * MIB), pool.allocate(1000)]

    pool, held = prepare()
    with pytest.raises(MemoryError):
        pool.allocate(6 * MIB)  # imports what the report needs
    pool, held = prepare()

    check_hops(lambda: held.append(pool.allocate(6 * MIB)), files=18, changes=90)


@COUNTED
def test_a_warm_pair_stays_in_one_file() -> None:
    pool = make_pool()
    pool.allocate(1000).free()
    pool.allocate(1000).free()

    check_hops(lambda: pool.allocate(1000).free(), files=1, changes=1)
