"""The build that is tested is the one that was asked for."""

import os

import pytest

from madl import core, hotpath

EXPECTED = os.environ.get("TEST_MADL_EXPECT_BUILD")


@pytest.mark.skipif(EXPECTED is None, reason="TEST_MADL_EXPECT_BUILD is not set")
def test_core_and_hot_path_are_of_the_expected_build() -> None:
    is_compiled = EXPECTED == "compiled"

    assert (is_compiled, is_compiled) == (core.IS_COMPILED, hotpath.IS_COMPILED)


def test_core_and_hot_path_are_of_the_same_build() -> None:
    assert core.IS_COMPILED == hotpath.IS_COMPILED
