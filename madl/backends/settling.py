"""What a backend may offer so that nothing is lost when a call of it is interrupted."""

from typing import Protocol, runtime_checkable

from madl.backends.protocol import CommitBackend, Reservation


@runtime_checkable
class SettlingBackend(CommitBackend, Protocol):
    """A backend with COMMIT that can be asked about what nobody knows.

    When a signal handler raises in the middle of a commit, a decommit or a remap,
    nobody knows whether it has happened. Of a backend without this method, all that a
    pool can do then is to decommit the range, and ignore that it fails.
    """

    def settle(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        *,
        committed_nbytes: int,
    ) -> None:
        """Decommit whatever is committed of a range.

        Args:
            reservation: Where it is.
            offset: Where the range starts.
            nbytes: Its bytes.
            committed_nbytes: What is committed of the reservation elsewhere.
        """
