"""What begins before ``try`` and ends in its ``finally``: a signal may come between."""

import ast
import itertools
from collections.abc import Iterator

import pytest

from tests.architecture.modules import FILES

UNDONE_BY = {
    "acquire": {"release"},
    "add": {"discard", "remove"},
    "append": {"pop", "remove"},
    "register": {"unregister"},
    "setdefault": {"pop"},
}
"""What a call does, and which calls undo it."""
MEANT = {"self._doubtful.append": "a recovery settles pages whose change did not end"}
"""What may begin before its block, and why."""


def calls_of(*nodes: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield of each method that is called what it is called of, and its name."""
    for node in nodes:
        for one in ast.walk(node):
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
                yield ast.unparse(one.func.value), one.func.attr


def counts_of(*nodes: ast.AST) -> Iterator[tuple[str, type[ast.operator]]]:
    """Yield what is counted in place, and whether up or down."""
    for node in nodes:
        for one in ast.walk(node):
            if isinstance(one, ast.AugAssign):
                yield ast.unparse(one.target), type(one.op)


def undone(before: ast.AST, block: ast.Try) -> Iterator[str]:
    """Yield what happens before a block whose ``finally`` undoes it."""
    ends = [*block.finalbody, *block.handlers]
    undoing = set(calls_of(*ends))
    for whose, what in calls_of(before):
        if any((whose, end) in undoing for end in UNDONE_BY.get(what, ())):
            yield f"{whose}.{what}"
    counted_back = set(counts_of(*ends))
    for whose, by in counts_of(before):
        opposite = ast.Sub if by is ast.Add else ast.Add
        if (whose, opposite) in counted_back:
            yield f"{whose} is counted"


def exposed(tree: ast.AST) -> Iterator[str]:
    """Yield all that a handler that raises would leave begun for ever."""
    for node in ast.walk(tree):
        for statements in (getattr(node, "body", []), getattr(node, "orelse", [])):
            if not isinstance(statements, list):
                continue
            for before, block in itertools.pairwise(statements):
                if isinstance(block, ast.Try):
                    yield from undone(before, block)
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Try):
            yield from undone(node.test, node.body[0])


@pytest.mark.parametrize(
    "text",
    [
        "lock.acquire()\ntry:\n    act()\nfinally:\n    lock.release()",
        "if lock.acquire():\n try:\n  act()\n finally:\n  lock.release()",
        "self.users += 1\ntry:\n    act()\nfinally:\n    self.users -= 1",
        "running.add(me())\ntry:\n    act()\nfinally:\n    running.discard(me())",
    ],
)
def test_the_pattern_is_seen(text: str) -> None:
    assert list(exposed(ast.parse(text)))


def test_what_begins_inside_of_try_is_none() -> None:
    text = "try:\n    running.add(me)\n    act()\nfinally:\n    running.discard(me)"

    assert not list(exposed(ast.parse(text)))


def test_nothing_begins_before_the_block_that_ends_it() -> None:
    found = {what for path in FILES for what in exposed(ast.parse(path.read_text()))}

    assert found == MEANT.keys()
