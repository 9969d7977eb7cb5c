"""Plugins that are installed for one test."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from madl.backends import registry
from tests.unit.plugin_folder import PluginFolder


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginFolder]:
    folder = PluginFolder(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    registry.forget_plugins()
    yield folder
    registry.forget_plugins()
    for module in folder.modules:
        sys.modules.pop(module, None)
