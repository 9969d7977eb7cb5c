"""Limits that only warn, once each time they are passed."""

import warnings

from madl import stacks
from madl.sizes import format_nbytes


class SoftLimitWarning(UserWarning):
    """More is taken than a soft limit allows.

    Not a ``ResourceWarning``, which Python hides unless asked: whoever sets a soft
    limit wants to hear of it.
    """


class SoftLimit:
    """Knows when a figure has passed a limit, and whether somebody was told.

    Looked at in the middle of changes; told of when no lock is held.
    """

    def __init__(self, limit_nbytes: int | None = None) -> None:
        self.limit_nbytes = limit_nbytes
        self.is_above = False
        self.is_news = False
        """Whether it has been passed, and nobody was told."""

    def look(self, nbytes: int) -> None:
        """Take note of what the figure is now."""
        if self.limit_nbytes is None:
            return
        is_above = nbytes > self.limit_nbytes
        self.is_news = is_above and (self.is_news or not self.is_above)
        self.is_above = is_above

    def tell(self, what: str) -> None:
        """Warn, if there is news. Raises where warnings are errors."""
        if not self.is_news or self.limit_nbytes is None:
            return
        self.is_news = False
        warnings.warn(
            f"{what} passed the soft limit of {format_nbytes(self.limit_nbytes)}",
            SoftLimitWarning,
            stacklevel=stacks.levels(),
        )
