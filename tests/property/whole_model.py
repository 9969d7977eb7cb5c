"""A pool with all that may happen to it at once: limits, streams, faults, wiping.

Every block has one value, which all reads of it have to find; and nobody ever finds
the value of somebody else where the pool zeroes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import madl
from madl import BackendCallError, Memory, OutOfMemoryError, Pool
from madl.backends.protocol import Capability
from madl.pool.options import Fit, Zero
from madl.testing import Failure, FakeBackend, Fault
from madl.testing.fakes import GARBAGE

KIB = 1024
TOTAL_NBYTES = 1024 * KIB
TAG_LIMIT = 200 * KIB
HIGHEST_VALUE = 100
"""Of a block's bytes, which are from 1 on; what a device spoils has another."""

_HOST = Capability.HOST_ACCESS
_DEVICE = Capability.COPY | Capability.FILL
_STREAMS = _DEVICE | Capability.STREAM_ORDERED
_PAGES = Capability.COMMIT
_MOVED = _PAGES | Capability.REMAP
DEVICES = {
    "host pages": _HOST | _MOVED,
    "host segments": _HOST,
    "device": _DEVICE | _PAGES,
    "streams": _STREAMS | _MOVED,
    "streams, no moves": _STREAMS | _PAGES,
    "stream segments": _STREAMS,
}


@dataclass(frozen=True)
class Whole:
    """A device and the options of the pool over it."""

    device: str = "streams"
    limit: int | None = 512 * KIB
    zero: Zero = False
    recycle: bool = True
    fit: Fit = "first"


@dataclass
class Live:
    """A block that somebody has; ``value`` is None where a write was interrupted."""

    memory: Memory
    value: int | None


class WholeModel:
    """A pool, and what it must account for."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.backend = FakeBackend(
            total_nbytes=TOTAL_NBYTES, capabilities=DEVICES[whole.device]
        )
        self.pool = Pool(
            self.backend,
            limit=whole.limit,
            zero=whole.zero,
            recycle=whole.recycle,
            fit=whole.fit,
        )
        self.is_ordered = Capability.STREAM_ORDERED in self.backend.capabilities
        self.streams = [self._new_stream() for _ in range(3)]
        self.live: list[Live] = []
        self.operations = 0
        # What was read, or will be when its stream has come there, and what it may be.
        self._reads: list[tuple[bytearray, set[int]]] = []

    def allocate(
        self, nbytes: int, *, stream: int = 0, tag: str | None = None, value: int = 1
    ) -> None:
        """Allocate, look at what is there, and write a value to all of it."""
        where = self.streams[stream % len(self.streams)]
        found: list[Memory] = []

        def take() -> None:
            with madl.tag("bounded", limit=TAG_LIMIT):
                found.append(self.pool.allocate(nbytes, stream=where, tag=tag))

        try:
            if not self._try(take):
                return
        except OutOfMemoryError as error:
            assert error.requested == nbytes  # noqa: PT017  # there need be none
            return
        entry = Live(found[0], None)
        self.live.append(entry)
        if self.whole.zero:
            fresh = {0} if self.whole.zero is True else {0, GARBAGE}
            self._read(entry, where, fresh)
        self._write(entry, value)

    def free(self, choice: int) -> None:
        """Free a block; whatever the device does, it never fails."""
        if self.live:
            self.live.pop(choice % len(self.live)).memory.free()

    def drop(self, choice: int) -> None:
        """Forget a block without a free."""
        if self.live:
            del self.live[choice % len(self.live)]

    def resize(self, choice: int, nbytes: int) -> None:
        """Give a block another size; on failure it is as it was."""
        if not self.live:
            return
        entry = self.live[choice % len(self.live)]
        before = entry.memory.nbytes
        try:
            is_done = self._try(lambda: entry.memory.resize(nbytes))
        except OutOfMemoryError:
            is_done = False
        assert entry.memory.nbytes == (nbytes if is_done else before)
        if is_done and nbytes > before:
            self._write(entry, entry.value or 1)

    def read(self, choice: int, stream: int) -> None:
        """Queue a read, in the owner's stream or in another one behind it."""
        if not self.live:
            return
        entry = self.live[choice % len(self.live)]
        if entry.value is None:
            return
        reader = self.streams[stream % len(self.streams)]
        if self.is_ordered:
            owner = entry.memory.stream

            def follow() -> None:
                self.backend.wait(reader, self.backend.record(owner))

            if not self._try(follow):
                return
        self._read(entry, reader, {entry.value})

    def pump(self, stream: int, count: int) -> None:
        """Let the device do some of what is queued in a stream."""
        if self.is_ordered:
            self.streams[stream % len(self.streams)].pump(count)

    def trim(self, keep: int) -> None:
        """Give memory back."""
        self._try(lambda: self.pool.trim(keep))

    def forget(self, stream: int) -> None:
        """End a stream whose blocks are freed."""
        if not self.is_ordered:
            return
        gone = self.streams[stream % len(self.streams)]
        self.live = [one for one in self.live if one.memory.stream is not gone]
        if self._try(lambda: self.pool.forget_stream(gone)):
            gone.pump()
            self.streams[self.streams.index(gone)] = self._new_stream()

    def fail(self, call: int, failure: Failure) -> None:
        """Let one of the next calls to the device fail."""
        self.backend.fail(Fault(call, failure))

    def check(self) -> None:
        """Compare what the pool says with the blocks, and reads with writes."""
        self.operations += 1
        self.pool.check()
        stats = self.pool.stats()
        assert stats.live_nbytes == sum(one.memory.nbytes for one in self.live)
        assert stats.committed_nbytes == self.backend.committed_nbytes
        assert stats.committed_nbytes <= (self.whole.limit or TOTAL_NBYTES)

    def finish(self) -> None:
        """Let all be done, and be given back."""
        self.backend.recover()
        self.backend.finish()
        for found, allowed in self._reads:
            assert set(found) <= allowed
        self.live.clear()
        self.pool.close()
        assert not self.backend.reservations

    def _new_stream(self) -> Any:  # noqa: ANN401  # a FakeStream, or None
        return self.backend.make_stream() if self.is_ordered else None

    def _read(self, entry: Live, stream: object, allowed: set[int]) -> None:
        found = bytearray(entry.memory.nbytes)
        if self._try(lambda: entry.memory.copy_to(found, stream=stream)):
            self._reads.append((found, allowed))

    def _write(self, entry: Live, value: int) -> None:
        stream = entry.memory.stream
        content = bytes([value]) * entry.memory.nbytes
        is_done = self._try(lambda: entry.memory.copy_from(content, stream=stream))
        entry.value = value if is_done else None

    def _try(self, action: Callable[[], object]) -> bool:
        """Return whether it worked; it may fail if the device was told to."""
        is_done = is_interrupted = False
        try:
            action()
            is_done = True
        except BackendCallError:
            assert self.backend.fault is not None
        except KeyboardInterrupt:
            is_interrupted = True
        if is_interrupted:
            # Put right at once: a device that fails meanwhile keeps what is left over.
            # Not while the error is handled: its traceback has hold of blocks.
            self.pool.check()
        return is_done
