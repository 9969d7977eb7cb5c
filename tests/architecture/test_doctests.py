"""The examples in docstrings are true."""

import doctest
import importlib

import pytest

from tests.architecture.modules import MODULES


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))

    assert failed == 0, "see the captured output"
