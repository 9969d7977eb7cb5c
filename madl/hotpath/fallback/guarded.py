"""What the interpreted body does differently where there is no interpreter lock.

Lists stay atomic there, but ``+=`` does not. So whatever counts, or tests before it
acts, holds a lock for that moment; nothing waits for anything else while it does.
"""

from madl.hotpath.counting import counting
from madl.hotpath.fallback import pool
from madl.hotpath.fallback.bins import LastFrees
from madl.hotpath.fallback.block import Block
from madl.hotpath.fallback.hands import has_block_in_hand
from madl.hotpath.fallback.memory import Memory
from madl.hotpath.fallback.pool import HotPool
from madl.hotpath.fallback.root import Root
from madl.hotpath.fallback.wiping import WipedReturns
from madl.hotpath.shared import BlockState, HotArena, cold

_plain_block_at = HotPool._block_at
_plain_count_live = HotPool._count_live
_plain_block_states = HotPool._block_states
_plain_gather_lost = HotPool._gather_lost
_plain_recount = HotPool._recount
_plain_return_every_free = HotPool._return_every_free
_plain_keep_by = Memory._keep_by
_plain_detach = Memory._detach
_plain_exchange = Memory._exchange
_plain_change_watch_count = pool.change_watch_count


def _change_watch_count(by: int) -> None:
    with counting:
        _plain_change_watch_count(by)


def _allocate(
    self: HotPool,
    nbytes: int | str,
    *,
    alignment: int | None = None,
    stream: object = None,
    tag: str | None = None,
) -> Memory:
    if (
        nbytes.__class__ is not int
        or alignment is not None
        or stream is not None
        or tag is not None
        or pool.active_watches
    ):
        return self._allocate_with(nbytes, alignment, stream, tag)
    placed_before = self._account.placed_count
    try:
        block = _pop(self, nbytes) or self._miss(nbytes)
        return self._hand_out(block, nbytes, None)
    except BaseException:
        self._return_since(placed_before)
        raise


@has_block_in_hand
def _pop(self: HotPool, nbytes: int) -> Block | None:
    """Take a block from its bin, if there is one."""
    try:
        with counting:
            return self._take(self._bins_by_request[nbytes][0].pop())
    except (KeyError, IndexError):
        return None


def _count_live(self: HotPool, block: Block, nbytes: int) -> None:
    with counting:
        _plain_count_live(self, block, nbytes)


def _block_at(
    self: HotPool, arena: HotArena, offset: int, capacity: int, *, is_binned: bool
) -> Block:
    with counting:
        return _plain_block_at(self, arena, offset, capacity, is_binned=is_binned)


def _unplace(self: HotPool, block: Block) -> None:
    with counting:
        self._account.add_binned(-block.capacity)
        self._placed.discard(block)
    self._give_back(block)


def _gather_lost(self: HotPool) -> bool:
    with counting:
        return _plain_gather_lost(self)


def _recount(self: HotPool) -> bool:
    with counting:
        return _plain_recount(self)


def _block_states(self: HotPool) -> list[BlockState]:
    with counting:
        return _plain_block_states(self)


def _return_every_free(self: HotPool) -> None:
    with counting:
        _plain_return_every_free(self)


@has_block_in_hand
def _free(self: Memory) -> None:
    with counting:  # two threads may free the same handle
        block = self._block
        self._block = None
        root, self._root = self._root, self._root if block is None else None
    if block is None:
        raise cold["refuse_free"](self)
    if root is None:
        _take_back(self, block)
    elif block.watch is not None:
        block.watch.is_viewed = True


@has_block_in_hand
def _finalize(self: Memory) -> None:
    block = self._block
    is_gone = _take_back is None  # as all globals at the interpreter's exit
    if block is not None and self._root is None and not is_gone:
        _take_back(self, block, is_dropped=True)


def _take_back(memory: Memory, block: Block, *, is_dropped: bool = False) -> None:
    with counting:
        watch, block.watch = block.watch, None
    try:
        if watch is not None:
            (watch.dropped if is_dropped else watch.freed)()
    finally:
        home = block.home
        place = home.home if isinstance(home, LastFrees) else home
        if isinstance(place, WipedReturns):
            place.wipe(block)  # not while counting: it may take a while
        with counting:
            memory._pool._account.total += block.refund
            block.refund = 0
            home = block.home
            is_last = isinstance(home, LastFrees)
            is_plain = not is_last and not isinstance(home, WipedReturns)
            (home if is_plain else memory._pool._returned).append(block)
        if is_last:
            memory._pool._freed_after_close()


def _keep_by(self: Memory, root: Root) -> Root | None:
    with counting:
        return _plain_keep_by(self, root)


def _detach(self: Memory) -> bool:
    with counting:
        return _plain_detach(self)


def _exchange(self: Memory, other: Memory, arena: HotArena | None, offset: int) -> bool:
    with counting:
        return _plain_exchange(self, other, arena, offset)


def install() -> None:
    """Let both classes work without an interpreter lock."""
    pool.change_watch_count = _change_watch_count
    for name, function in {
        "allocate": _allocate,
        "_count_live": _count_live,
        "_block_at": _block_at,
        "_unplace": _unplace,
        "_block_states": _block_states,
        "_gather_lost": _gather_lost,
        "_recount": _recount,
        "_return_every_free": _return_every_free,
    }.items():
        function.__doc__ = getattr(HotPool, name).__doc__
        setattr(HotPool, name, function)
    for name, method in {
        "free": _free,
        "__del__": _finalize,
        "_keep_by": _keep_by,
        "_detach": _detach,
        "_exchange": _exchange,
    }.items():
        method.__doc__ = getattr(Memory, name).__doc__
        setattr(Memory, name, method)
