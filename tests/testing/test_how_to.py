"""The backend of the how-to is what the page says: right, and a plugin."""

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest

import pytest

import madl
from madl.backends import registry
from tests.pages import code_of, needs_pages

pytestmark = needs_pages


@pytest.fixture
def code() -> str:
    """Return all Python of the page, as one module."""
    return code_of("docs/how-to/write-a-backend.md")


@pytest.fixture
def _installed(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    (tmp_path / "madl_toy.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MADL_PLUGINS", "madl_toy")
    registry.forget_plugins()
    yield
    registry.forget_plugins()
    sys.modules.pop("madl_toy", None)


def test_its_backend_passes_its_tests(code: str) -> None:
    namespace: dict[str, type] = {}
    exec(code, namespace)
    case = namespace["TestToy"]
    passed = []

    for name in (name for name in dir(case) if name.startswith("test_")):
        try:
            getattr(case(), name)()
        except SkipTest:
            continue
        passed.append(name)

    assert len(passed) > 15


@pytest.mark.usefixtures("_installed")
def test_its_module_is_a_plugin() -> None:
    with madl.Pool("toy:0") as pool, pool.allocate(100) as memory:
        memory.fill(1)

        assert (memory.device, memory.tobytes()) == ("toy:0", b"\x01" * 100)
    assert "toy:0" in madl.devices()
