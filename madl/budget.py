"""How much a pool has taken from its device, and how much more it may take."""


class Budget:
    """Committed bytes of all arenas of a pool, under one limit.

    Kept by the arenas as they commit and decommit, so that nobody has to add up.
    """

    def __init__(self, limit_nbytes: int | None) -> None:
        self.limit_nbytes = limit_nbytes
        self.committed_nbytes = 0
        self.high_water_nbytes = 0

    @property
    def room_nbytes(self) -> int | None:
        """Bytes that may still be committed; ``None`` without a limit."""
        if self.limit_nbytes is None:
            return None
        return self.limit_nbytes - self.committed_nbytes

    def commit(self, nbytes: int) -> None:
        """Note that bytes have been taken from the device."""
        self.committed_nbytes += nbytes
        if self.committed_nbytes > self.high_water_nbytes:
            self.high_water_nbytes = self.committed_nbytes

    def decommit(self, nbytes: int) -> None:
        """Note that bytes have been given back to the device."""
        self.committed_nbytes -= nbytes
