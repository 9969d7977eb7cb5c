"""Weak sets that others add to."""

import functools
import weakref
from collections.abc import Iterator

from madl.hotpath.reentrancy import living
from madl.testing import FakeBackend
from tests.interruptions import comes_between


class Member:
    """Something that can be in a weak set."""


class Growing(weakref.WeakSet[Member]):
    """One that another thread adds to as soon as somebody goes through it."""

    def __init__(self, first: Member, second: Member) -> None:
        super().__init__([first])
        self._second = second

    def __iter__(self) -> Iterator[Member]:
        for member in super().__iter__():
            yield member
            self.add(self._second)


def test_all_members_are_there() -> None:
    members = [Member(), Member()]

    assert set(living(weakref.WeakSet(members))) == set(members)


def test_what_is_added_meanwhile_is_there_too() -> None:
    first, second = Member(), Member()

    assert set(living(Growing(first, second))) == {first, second}


def test_a_fake_device_adds_up_what_others_reserve_meanwhile() -> None:
    moments, is_inside = 0, True
    while is_inside:
        moments += 1
        backend = FakeBackend()
        backend.reserve(backend.page_nbytes)
        reserve = functools.partial(backend.reserve, backend.page_nbytes)
        is_inside = comes_between(lambda: backend.reserved_nbytes, moments, reserve)  # noqa: B023  # called at once

    assert moments > 2
