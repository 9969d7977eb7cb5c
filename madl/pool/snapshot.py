"""Where every block of a pool lies at one moment, as plain data."""

from typing import NamedTuple

from madl.stacks import Stack


class BlockSnapshot(NamedTuple):
    """A part of an arena.

    Attributes:
        offset: Bytes from the start of the arena.
        capacity_nbytes: Bytes that it takes there.
        state: ``"live"``, ``"binned"`` or ``"free"``.
        nbytes: Bytes asked for, while live.
        tag: What it is for, while live.
        stack: Where it was allocated, while ``keep_stacks`` is in force.
    """

    offset: int
    capacity_nbytes: int
    state: str
    nbytes: int = 0
    tag: str | None = None
    stack: Stack = ()


class ArenaSnapshot(NamedTuple):
    """A reservation: its blocks without gaps, lowest first, and its pages.

    Attributes:
        nbytes: Bytes of address space.
        address: Where it starts; ``None`` where the device has no addresses.
        page_nbytes: The unit in which it is committed.
        committed_runs: Runs ``(offset, nbytes)`` of committed memory, lowest first.
        blocks: All of its blocks.
    """

    nbytes: int
    address: int | None
    page_nbytes: int
    committed_runs: tuple[tuple[int, int], ...]
    blocks: tuple[BlockSnapshot, ...]


class PoolSnapshot(NamedTuple):
    """All arenas of a pool.

    Attributes:
        device: The device, as in ``"cuda:0"``.
        live_nbytes: Handed out, as asked for.
        committed_nbytes: Really taken from the device.
        arenas: In the order in which they were reserved.
    """

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
