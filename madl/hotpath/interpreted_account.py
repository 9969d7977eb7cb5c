"""What a pool and its lanes count together, interpreted."""


class Account:
    """Plain slots: ``+=`` on one calls nothing, so that no other thread comes in."""

    __slots__ = (
        "allocation_count",
        "binned_nbytes",
        "live_high_water",
        "live_nbytes",
    )

    def __init__(self) -> None:
        self.allocation_count = 0
        self.binned_nbytes = 0
        self.live_high_water = 0
        self.live_nbytes = 0


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
