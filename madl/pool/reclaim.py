"""What is tried, in which order, before a request fails."""

import functools
import gc
import operator
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, NoReturn, Protocol, TypeVar

from madl.errors import OutOfMemoryError
from madl.errors.report import Request

_Found = TypeVar("_Found")

MOST_TURNS = 100
"""How often one step is taken for one request, while others take what it gives."""


class Freed(int):
    """Bytes that a reclaimer knows it has freed, whether or not they are still free."""


class Reclaimer(NamedTuple):
    """A function that a pool asks to give memory up."""

    priority: int
    callback: Callable[[int], object]


class Step(NamedTuple):
    """Something that may give memory back. Runs with no lock held."""

    name: str
    call: Callable[[], object]
    most_turns: int = MOST_TURNS

    def run(self) -> BaseException | int:
        """Take the step; return the error that it raised, or bytes that it freed.

        The latter as far as it knows: what most return has no meaning here.
        """
        try:
            freed = self.call()
        except Exception as error:  # the user's; it becomes the context of ours
            return error
        return freed if isinstance(freed, Freed) else 0


class Reclaimers:
    """The reclaimers of one pool, lowest priority number first, then the collector."""

    def __init__(self) -> None:
        # In the order of registering. Each change is one atomic call of dict's own:
        # threads may race.
        self._registered: dict[object, Reclaimer] = {}
        self._running: set[int] = set()  # threads, while a reclaimer runs in them

    def register(
        self, callback: Callable[[int], object], priority: int
    ) -> Callable[[], None]:
        """Add a reclaimer; return what removes it again."""
        key = object()
        self._registered[key] = Reclaimer(priority, callback)

        def unregister() -> None:
            self._registered.pop(key, None)

        return unregister

    def forget(self) -> None:
        """Remove all of them."""
        self._registered.clear()

    def steps(self, nbytes: int) -> Iterator[Step]:
        """Yield what to try, in order, for a request of ``nbytes`` bytes.

        Nothing for a request that a reclaimer makes itself: it would not end.
        """
        if threading.get_ident() in self._running:
            return
        registered = self._registered.copy().values()
        for _, callback in sorted(registered, key=lambda one: one.priority):
            name = getattr(callback, "__qualname__", type(callback).__qualname__)
            yield Step(
                f"reclaimer {name}", functools.partial(self._run, callback, nbytes)
            )
        # Once: a second collection finds little, and takes as long as the first.
        yield Step("garbage collection", gc.collect, most_turns=1)

    def _run(self, callback: Callable[[int], object], nbytes: int) -> object:
        ident = threading.get_ident()
        try:
            self._running.add(ident)
            return callback(nbytes)
        finally:
            # A call of C first: a signal handler that raises comes after it.
            self._running.discard(ident)


class Short(Protocol):
    """A pool that is short of memory."""

    def held(self) -> tuple[int, ...]:
        """Return bytes that a step may lower."""

    def out_of_memory(self, request: Request) -> OutOfMemoryError:
        """Return the error for a request."""


def reclaim(
    pool: Short,
    request: Request,
    steps: Iterable[Step],
    attempt: Callable[[], _Found],
) -> _Found:
    """Take one step after the other until an attempt succeeds, or raise.

    A step that gave what the request needs, and yet the attempt fails, is taken again:
    it is in pieces, or another thread won the race for it. That thread made progress,
    so all do in the end; ``most_turns`` bounds one that always loses.

    Args:
        pool: Whose request it is. What a step gave back is the most by which one of the
            figures that it holds fell, or what the step knows itself.
        request: What has failed once.
        steps: What to try, in order.
        attempt: Places the request or raises.
    """
    cause: BaseException | None = None
    try:
        for step in steps:
            given = 0
            for _ in range(step.most_turns):
                before = pool.held()
                result = step.run()
                fallen = map(operator.sub, before, pool.held())
                if isinstance(result, BaseException):
                    cause, result = result, 0
                gained = max(*fallen, result)
                given += gained
                try:
                    return attempt()
                except OutOfMemoryError as error:
                    request = request._replace(
                        native=error.report.native, tag_limit=error.report.tag_limit
                    )
                if gained < request.capacity:
                    break
            request = request._replace(tried=_added(request.tried, step.name, given))
        raise_after(cause, pool.out_of_memory(request))
    finally:
        del cause  # as in raise_after


_Tried = tuple[tuple[str, int], ...]


def _added(tried: _Tried, name: str, given: int) -> _Tried:
    """Return what was tried, with a step; one that goes on with the last is one."""
    if tried and tried[-1][0] == name:
        return *tried[:-1], (name, tried[-1][1] + given)
    return *tried, (name, given)


def raise_after(cause: BaseException | None, error: Exception) -> NoReturn:
    """Raise ``error`` with ``cause`` as its context, whatever the caller handles."""
    try:
        if cause is None:
            raise error
        try:
            raise cause
        except type(cause):
            raise error  # noqa: B904  # its context is the cause, as promised
    finally:
        # A traceback has this frame and those that called it. Were an error in one of
        # them, they would keep each other, and all memory that the callers hold.
        del cause, error
