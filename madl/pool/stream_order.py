"""When work that was queued in a stream is done, as far as a pool has to know."""

from typing import cast

from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability, CaptureBackend, StreamOrderedBackend
from madl.errors import MissingCapabilityError


class StreamOrder:
    """One stream of a backend; on devices without streams no work is queued.

    A pool unmaps and moves memory from the host, which the device's own order does
    not cover: before that, it has to see that queued work is done.
    """

    is_ordered = False

    def __init__(self, stream: object) -> None:
        self.stream = stream  # keeps it, until its blocks are merged

    @staticmethod
    def of(backend: CountedBackend, stream: object) -> "StreamOrder":
        """Return the order of a stream; ``None`` is the backend's default one."""
        if Capability.STREAM_ORDERED in backend.capabilities:
            return _Queued(backend, stream)
        return StreamOrder(stream)

    def record(self) -> object:
        """Return an event at the end of what is queued."""
        return None

    def is_done(self, freed: object) -> bool:
        """Return whether no queued work uses what the stream has free. Does not wait.

        Args:
            freed: Is equal to what it was before if nothing was freed since.
        """
        return True

    def has_reached(self, event: object) -> bool:  # the queued one looks
        """Return whether an event of any stream has been reached. Does not wait."""
        return True

    def is_capturing(self) -> bool:
        """Return whether work becomes part of a graph now, instead of being done."""
        return False

    def wait_for_free(self, freed: object) -> None:
        """Return when ``is_done``."""

    def wait(self, freed: object = None) -> None:
        """Return when all that is queued is done; then ``is_done`` is so as well."""

    def follow(self, other: "StreamOrder") -> None:
        """Let this stream's later work wait for what the other has queued."""

    def refuse_in_capture(self, action: str) -> None:
        """Raise while that is so."""


class _Queued(StreamOrder):
    """A stream of a device that does queued work later.

    It keeps the event that was recorded when memory had become free, and asks for that
    one as long as no more is freed. No driver has to know at once that an event of this
    instant is reached, even if nothing is queued; and what is queued later uses nothing
    that was free before.
    """

    is_ordered = True

    def __init__(self, backend: CountedBackend, stream: object) -> None:
        super().__init__(stream)
        self._device = backend.device
        self._backend = cast("StreamOrderedBackend", backend.backend)
        self._captures = Capability.CAPTURE in backend.capabilities
        self._last_use: tuple[object, object] | None = None
        """What was free, and an event behind all that may use it."""

    def record(self) -> object:
        return self._backend.record(self.stream)

    def is_done(self, freed: object) -> bool:
        if self.is_capturing():
            return False
        return self._backend.is_done(self._event_after(freed))

    def _event_after(self, freed: object) -> object:
        if self._last_use is None or self._last_use[0] != freed:
            self._last_use = freed, self.record()
        return self._last_use[1]

    def is_capturing(self) -> bool:
        if not self._captures:
            return False
        return cast("CaptureBackend", self._backend).is_capturing(self.stream)

    def refuse_in_capture(self, action: str) -> None:
        """Raise before a call that would end the capture, or be a part of the graph."""
        if self.is_capturing():
            raise MissingCapabilityError(
                self._device,
                f"way to {action} while a graph is captured from a stream of the pool",
                "allocate before the capture, or raise the limit",
            )

    def has_reached(self, event: object) -> bool:
        return self._backend.is_done(event)

    def wait_for_free(self, freed: object) -> None:
        self.refuse_in_capture("wait for queued work")
        self._backend.synchronize(self._event_after(freed))

    def wait(self, freed: object = None) -> None:
        self.refuse_in_capture("wait for queued work")
        self._last_use = freed, self.record()
        self._backend.synchronize(self._last_use[1])

    def follow(self, other: StreamOrder) -> None:
        self.refuse_in_capture("take memory of another stream")
        self._backend.wait(self.stream, other.record())
