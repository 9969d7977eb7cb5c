"""Base class of conformance tests: opens the backend under test, or skips."""

import os
from unittest import SkipTest

from madl.backends import registry
from madl.backends.protocol import Backend, Capability
from madl.errors import BackendNotFoundError, ConfigurationError
from madl.settings.known import suggestion
from madl.testing.workbench import Workbench

REQUIRE = "MADL_REQUIRE"
"""Environment variable: kinds of devices, with commas, that must not be missing."""

NOT_DEVICES = frozenset({"browser", "ecosystem"})
"""What madl's own tests may require besides."""


class BackendCase:
    """Opens the backend that a subclass makes.

    Tests whose capability the backend does not claim are skipped, and all of them
    where there is no such device: unless its kind is in ``MADL_REQUIRE``.
    """

    most_nbytes: int | None = None
    """The most that a test takes; ``None`` for half of what the device has left.

    Override it where memory is touched, and so slow, or needed by others.
    """

    def make_backend(self) -> Backend:
        """Return a new backend. Override it.

        Raises:
            BackendNotFoundError: This machine has no such device.
        """
        raise NotImplementedError(
            f"override make_backend() in {type(self).__name__}, the class of tests"
        )

    def make_stream(self, backend: Backend) -> object:
        """Return a new stream of the device. Override it for STREAM_ORDERED."""
        raise AssertionError(
            f"{backend.device} claims STREAM_ORDERED: override make_stream(backend) in "
            f"{type(self).__name__}, or its streams are not tested"
        )

    def bytes_of_view(self, backend: Backend, view: object) -> bytes | None:
        """Return what a native view holds; override it to have VIEW tested by it."""
        return None

    def open_backend(self) -> Backend:
        """Return a new backend, or skip, or fail where it is required."""
        try:
            return self.make_backend()
        except BackendNotFoundError as error:
            kind = error.device.partition(":")[0]
            if kind not in required_kinds():
                raise SkipTest(str(error)) from error
            raise AssertionError(
                f"{REQUIRE} names {kind!r}, but this machine does not have it: {error}"
            ) from error

    def workbench(self, *capabilities: Capability) -> Workbench:
        """Return a workbench over a new backend that has all capabilities, or skip."""
        backend = self.open_backend()
        for capability in capabilities:
            if capability not in backend.capabilities:
                raise SkipTest(f"{backend.device} does not claim {capability.name}")
        return Workbench(backend)

    def content_workbench(self, *capabilities: Capability) -> Workbench:
        """Return a workbench whose bytes can be written and read back, or skip."""
        bench = self.workbench(*capabilities)
        if not bench.has_content:
            raise SkipTest(
                f"{bench.backend.device} claims neither HOST_ACCESS nor COPY, so its "
                "bytes cannot be compared"
            )
        return bench


def required_kinds() -> frozenset[str]:
    """Return the kinds of devices whose absence is a failure.

    Raises:
        ConfigurationError: A kind that nothing opens is required: its tests would be
            skipped all the same.
    """
    listed = os.environ.get(REQUIRE, "").split(",")
    required = frozenset(kind.strip() for kind in listed if kind.strip())
    if required:
        known = NOT_DEVICES.union(registry.kinds())
        unknown = {kind for kind in required if kind.partition("_")[0] not in known}
        for kind in sorted(unknown - known):
            raise ConfigurationError(
                REQUIRE,
                f"{REQUIRE} names {kind!r}, which nothing opens",
                suggestion(kind, known) or ", ".join(sorted(known)),
            )
    return required
