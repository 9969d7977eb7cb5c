"""What a handle of the compiled core takes, beside its block."""

import ctypes

import pytest

from madl.hotpath import IS_COMPILED, Memory


@pytest.mark.skipif(not IS_COMPILED, reason="interpreted, a handle has slots")
def test_a_handle_has_four_words_of_its_own() -> None:
    word_nbytes = ctypes.sizeof(ctypes.c_void_p)

    assert Memory.__basicsize__ == 6 * word_nbytes  # with its count and its type
