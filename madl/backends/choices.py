"""What a backend may offer for its user to choose, besides the size of OS pages.

Each is a small protocol of its own, as in ``protocol``, for reservations from now on.
"""

from typing import Protocol, runtime_checkable

from madl.backends.protocol import Backend


@runtime_checkable
class PrefaultBackend(Backend, Protocol):
    """A backend with ``Capability.PREFAULT``."""

    def choose_prefault(self, *, prefault: bool) -> None:
        """Say whether memory is faulted in when it is committed, or reserved.

        It is for reservations from now on. Whoever chooses pages as well does it
        afterwards.
        """


class GuardPagesBackend(Backend, Protocol):
    """A backend of host memory that can keep others off what is not committed."""

    def choose_guard_pages(self) -> None:
        """Let nobody touch what is not committed, in reservations from now on.

        Raises:
            MissingCapabilityError: This system cannot say so.
        """


@runtime_checkable
class NumaBackend(Backend, Protocol):
    """A backend with ``Capability.NUMA``."""

    def choose_node(self, node: int | None) -> None:
        """Prefer memory of a node for reservations from now on; ``None`` for any.

        Raises:
            MissingCapabilityError: There is no such node, or nobody may choose.
        """
