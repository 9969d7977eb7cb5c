"""What a pool and its lanes count together, interpreted."""

_BINNED = 64
_LIVE = _BINNED + 80  # bytes in bins have 80 bits, more than pools ever have


def charges(nbytes: int, capacity: int) -> tuple[int, int]:
    """Return what an allocation adds to an account, and what its free adds again."""
    free = (capacity << _BINNED) - (nbytes << _LIVE)
    return 1 - free, free


class Account:
    """Live bytes, bytes in bins and allocations in one int, from the highest bits down.

    One ``+=`` on a slot costs about 40 ns whatever it adds. It calls nothing, so that
    no other thread comes in.
    """

    __slots__ = ("highest", "placed_count", "total", "was_interrupted")

    def __init__(self) -> None:
        self.placed_count = 0
        self.was_interrupted = False
        self.total = 0
        self.highest = 0  # its live bytes are the high water; the rest is no matter

    @property
    def live_nbytes(self) -> int:
        """Bytes of what is live, as asked for."""
        return self.total >> _LIVE

    @property
    def live_high_water(self) -> int:
        """The most of them so far."""
        return self.highest >> _LIVE

    @property
    def binned_nbytes(self) -> int:
        """Bytes of what is placed and free."""
        return self.total % (1 << _LIVE) >> _BINNED

    @property
    def allocation_count(self) -> int:
        """Allocations so far."""
        return self.total % (1 << _BINNED)

    def add_binned(self, nbytes: int) -> None:
        """Count bytes as placed and free; fewer than none count them no longer."""
        self.total += nbytes << _BINNED

    def correct(self, before: int, live_nbytes: int, binned_nbytes: int) -> bool:
        """Set what is live and what is in bins, as found by looking at the blocks.

        Returns:
            Whether it was; not if the total is no longer what it was ``before``.
        """
        total = (live_nbytes << _LIVE) + (binned_nbytes << _BINNED)
        total += before % (1 << _BINNED)
        if self.total != before:  # no call from here on, so that nobody comes in
            return False
        self.total = total
        return True


class Accounted:
    """Whoever has an account, its own or that of the pool it is a lane of."""

    __slots__ = ("_account",)

    _account: Account

    @property
    def _binned_nbytes(self) -> int:
        return self._account.binned_nbytes

    @property
    def _live_nbytes(self) -> int:
        return self._account.live_nbytes

    @property
    def _live_high_water(self) -> int:
        return self._account.live_high_water

    @property
    def _allocation_count(self) -> int:
        return self._account.allocation_count

    @property
    def _placed_count(self) -> int:
        return self._account.placed_count

    @property
    def _was_interrupted(self) -> bool:
        return self._account.was_interrupted

    @_was_interrupted.setter
    def _was_interrupted(self, value: bool) -> None:
        self._account.was_interrupted = value
