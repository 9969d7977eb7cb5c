"""The device that most tests run on: the shipped fake one, small and without bytes."""

from madl import testing
from madl.backends.protocol import Capability
from madl.testing import Failure, Fault, MisuseError
from madl.testing.fakes import ALIGNMENT, GRANULARITY

__all__ = ["ALIGNMENT", "GRANULARITY", "Failure", "FakeBackend", "Fault", "MisuseError"]


class FakeBackend(testing.FakeBackend):
    """A device of 1 MiB of addresses.

    Args:
        total_nbytes: What the device has; more is refused.
        commits: Whether it has ``Capability.COMMIT``.
        remaps: Whether it has ``Capability.REMAP``.
        fault: Which calls fail.
    """

    def __init__(
        self,
        *,
        total_nbytes: int = 1 << 20,
        commits: bool = True,
        remaps: bool = True,
        fault: Fault | None = None,
    ) -> None:
        capabilities = Capability.NONE
        if commits:
            capabilities |= Capability.COMMIT
        if commits and remaps:
            capabilities |= Capability.REMAP
        super().__init__(
            total_nbytes=total_nbytes, capabilities=capabilities, fault=fault
        )

    def is_committed_at(self, address: int, nbytes: int) -> bool:
        """Return whether all of a range of addresses is committed."""
        first = address // GRANULARITY * GRANULARITY
        return self._committed.issuperset(range(first, address + nbytes, GRANULARITY))

    def _ask_for(self, call: str, nbytes: int) -> None:
        del call  # whichever it was, it takes memory
        super()._ask_for("take", nbytes)
