"""Zeroing: blocks are set to zero before they are handed out, or when they are freed.

The host writes zeros itself. A device that works through streams is told to, behind
what the block's own stream has queued, so that all later work finds them.
"""

import ctypes
from typing import cast

from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability, FillBackend
from madl.hotpath import HotArena
from madl.pool.arena import Arena
from madl.pool.growth import Growth
from madl.pool.options import is_zeroed_by_host
from madl.pool.stream_order import StreamOrder

Placed = tuple[HotArena, int, int]
"""An arena, the offset of a block in it, and its bytes."""


class Zeroing:
    """What the option ``zero=`` of a pool means on its device."""

    def __init__(self, backend: CountedBackend, zero: bool | str) -> None:
        self._backend = backend
        self.is_of_new = zero is True
        self.is_of_freed = zero == "free"
        self.is_by_host = is_zeroed_by_host(backend)
        self._is_new_zero = Capability.ZERO_WHEN_NEW in backend.capabilities

    @property
    def waits(self) -> bool:
        """Whether what is freed is wiped by the next call that takes it back."""
        return self.is_of_freed and not self.is_by_host

    def zero_new(self, placed: Placed | None, growth: Growth) -> None:
        """Zero a block that is about to be handed out, as far as it was used before.

        Args:
            placed: Where it lies; ``None`` without bytes.
            growth: Of the stream that gets it.

        Raises:
            BackendCallError: The device failed.
            MissingCapabilityError: A graph is being captured from the stream, which
                would do it whenever it is launched, and not now.
        """
        if placed is None:
            return
        arena, offset, nbytes = placed
        assert isinstance(arena, Arena), "a pool's arena"
        end = offset + nbytes
        if self._is_new_zero:
            nbytes = arena.use_until(end) - offset
        if nbytes > 0:
            growth.order.refuse_in_capture("zero memory")
            self._write(arena, offset, nbytes, growth.order)

    def wipe(self, placed: Placed | None, growth: Growth) -> bool:
        """Let the device zero a free block that no stream uses, if the pool does that.

        In the order of the stream that may have it next; raises as ``zero_new`` does.

        Returns:
            Whether it may be handed out; not while a graph is captured.
        """
        if placed is not None and self.waits:
            arena = cast("Arena", placed[0])
            order = growth.order_of(arena)
            if order.is_capturing():
                return False
            self._write(arena, placed[1], placed[2], order)
        return True

    def _write(
        self, arena: Arena, offset: int, nbytes: int, order: StreamOrder
    ) -> None:
        if self.is_by_host:
            assert arena.address is not None, "what the host reaches has an address"
            ctypes.memset(arena.address + offset, 0, nbytes)
        else:
            cast("FillBackend", self._backend.backend).fill(
                arena.reservation, offset, nbytes, 0, stream=order.stream
            )
