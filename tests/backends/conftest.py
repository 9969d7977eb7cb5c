"""Reservations of the running kernel's memory."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if sys.platform == "linux":
    from madl.backends.host import proc
    from madl.backends.host.linux import LinuxMemory
    from madl.backends.host.linux_reservations import LazyReservation, StrictReservation
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
        assert isinstance(reservation, LazyReservation | StrictReservation)
        yield reservation
        reservation.release()

    @pytest.fixture
    def lazy(memory: LinuxMemory) -> Iterator[LazyReservation]:
        reservation = memory.reserve(64 * PAGE)
        assert isinstance(reservation, LazyReservation)
        yield reservation
        reservation.release()

    @pytest.fixture
    def thp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        """Return what makes a kernel with a mode for huge pages of 2 MiB."""
        monkeypatch.setattr(proc, "_THP", tmp_path)

        def set_mode(enabled: str) -> None:
            (tmp_path / "enabled").write_text(f"{enabled}\n")
            (tmp_path / "hpage_pmd_size").write_text("2097152\n")

        return set_mode
