"""Where every block of a pool lies at one moment, as plain data."""

from typing import NamedTuple

from madl.stacks import Stack


class BlockSnapshot(NamedTuple):
    """A part of an arena."""

    offset: int
    capacity_nbytes: int
    state: str
    """``"live"``, ``"binned"`` or ``"free"``."""
    nbytes: int = 0
    """Bytes asked for, while live."""
    tag: str | None = None
    stack: Stack = ()
    """Where it was allocated, while ``keep_stacks`` is in force."""


class ArenaSnapshot(NamedTuple):
    """A reservation: its blocks without gaps, lowest first, and its pages."""

    nbytes: int
    address: int | None
    page_nbytes: int
    committed_runs: tuple[tuple[int, int], ...]
    """Runs ``(offset, nbytes)`` of committed memory, lowest first."""
    blocks: tuple[BlockSnapshot, ...]


class PoolSnapshot(NamedTuple):
    """All arenas of a pool."""

    device: str
    live_nbytes: int
    committed_nbytes: int
    arenas: tuple[ArenaSnapshot, ...]

    def as_dict(self) -> dict[str, object]:
        """Return it as plain containers, ready for ``json.dumps``."""
        arenas = [
            arena._asdict() | {"blocks": [block._asdict() for block in arena.blocks]}
            for arena in self.arenas
        ]
        return self._asdict() | {"arenas": arenas}
