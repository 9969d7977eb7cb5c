"""Nothing of madl can be executed but its own code: the sources know no other way."""

import re

from tests.architecture.modules import PACKAGE

SOURCES = {
    path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8")
    for kind in ("*.py", "*.pyx", "*.pxd", "*.h")
    for path in PACKAGE.rglob(kind)
}
EXECUTABLE = re.compile(r"\b(PROT_EXEC|PAGE_EXECUTE\w*|MAP_JIT|MFD_EXEC)\b")
CALLBACK = re.compile(r"\b(CFUNCTYPE|WINFUNCTYPE)\b")
"""A Python function that C calls is machine code that ctypes makes at run time."""
EVALUATES = re.compile(r"(?<![.\w])(eval|exec|compile|__import__)\(|pickle\.loads?\(")


def places_of(pattern: re.Pattern[str]) -> dict[str, list[str]]:
    found = {name: pattern.findall(text) for name, text in SOURCES.items()}
    return {name: words for name, words in found.items() if words}


def test_no_source_asks_for_memory_that_can_be_executed() -> None:
    assert "backends/host/linux_calls.py" in SOURCES
    assert places_of(EXECUTABLE) == {}


def test_no_python_function_becomes_machine_code() -> None:
    assert places_of(CALLBACK) == {}


def test_no_source_evaluates_text_or_unpickles() -> None:
    found = places_of(EVALUATES)
    found.pop("testing/sharing.py")  # what it has pickled itself

    assert found == {}
