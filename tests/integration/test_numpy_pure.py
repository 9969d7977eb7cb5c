"""Where there is no compiled core, NumPy's allocations stay NumPy's."""

import pytest

from madl import MissingCapabilityError
from madl.hotpath import IS_COMPILED
from madl.integrations.numpy import route


@pytest.mark.skipif(IS_COMPILED, reason="this madl is compiled")
def test_a_pure_install_says_why_and_what_to_do() -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        route()

    assert str(caught.value) == (
        "a madl of pure Python has no functions in C, without which NumPy's users "
        "would lose their exceptions. Try: a C compiler, then in madl's checkout: "
        "MADL_COMPILE=1 pip install --force-reinstall --no-deps ."
    )
