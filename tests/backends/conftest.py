"""Reservations of the running kernel's memory."""

import sys
from collections.abc import Iterator

import pytest

if sys.platform == "linux":
    from madl.backends._linux import LazyReservation, LinuxMemory, StrictReservation
    from tests.backends.host import PAGE, linux_memory

    @pytest.fixture
    def memory() -> LinuxMemory:
        return linux_memory()

    @pytest.fixture(params=["lazy", "strict"])
    def reservation(
        request: pytest.FixtureRequest,
    ) -> Iterator[LazyReservation | StrictReservation]:
        is_lazy = request.param == "lazy"
        reservation = linux_memory(is_lazy_allowed=is_lazy).reserve(64 * PAGE)
        yield reservation
        reservation.release()

    @pytest.fixture
    def lazy(memory: LinuxMemory) -> Iterator[LazyReservation]:
        reservation = memory.reserve(64 * PAGE)
        assert isinstance(reservation, LazyReservation)
        yield reservation
        reservation.release()
