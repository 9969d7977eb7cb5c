"""help() says the same of a compiled core as of an interpreted one."""

import inspect

import pytest

from madl.hotpath import IS_COMPILED, HotPool, Memory, fallback

BODIES = [(Memory, fallback.Memory), (HotPool, fallback.HotPool)]


@pytest.mark.skipif(not IS_COMPILED, reason="there is one body")
@pytest.mark.parametrize(("compiled", "plain"), BODIES)
def test_both_bodies_have_the_same_help(compiled: type, plain: type) -> None:
    names = [name for name in vars(plain) if not name.startswith("_")]

    different = [
        name
        for name in names
        if inspect.getdoc(getattr(compiled, name))
        != inspect.getdoc(getattr(plain, name))
    ]

    assert names
    assert different == []
    assert inspect.getdoc(compiled) == inspect.getdoc(plain)
