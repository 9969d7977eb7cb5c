"""What is tried, in which order, before a request fails."""

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn


class Reclaimer(NamedTuple):
    """A function that a pool asks to give memory up."""

    priority: int
    callback: Callable[[int], object]


class Step(NamedTuple):
    """Something that may give memory back. Runs with no lock held."""

    name: str
    call: Callable[[], object]

    def run(self) -> BaseException | None:
        """Take the step; return the error that it raised."""
        try:
            self.call()
        except Exception as error:  # the user's; it becomes the context of ours
            return error
        return None


class Reclaimers:
    """The reclaimers of one pool, lowest priority number first, then the collector."""

    def __init__(self) -> None:
        self._registered: list[Reclaimer] = []
        self._running: set[int] = set()  # threads, while a reclaimer runs in them

    def register(
        self, callback: Callable[[int], object], priority: int
    ) -> Callable[[], None]:
        """Add a reclaimer; return what removes it again."""
        entry = Reclaimer(priority, callback)
        self._registered = sorted(
            [*self._registered, entry], key=lambda one: one.priority
        )

        def unregister() -> None:
            self._registered = [one for one in self._registered if one is not entry]

        return unregister

    def steps(self, nbytes: int) -> Iterator[Step]:
        """Yield what to try, in order, for a request of ``nbytes`` bytes.

        Nothing for a request that a reclaimer makes itself: it would not end.
        """
        if threading.get_ident() in self._running:
            return
        for _, callback in self._registered:
            name = getattr(callback, "__qualname__", type(callback).__qualname__)
            yield Step(
                f"reclaimer {name}", functools.partial(self._run, callback, nbytes)
            )
        yield Step("garbage collection", gc.collect)

    def _run(self, callback: Callable[[int], object], nbytes: int) -> None:
        self._running.add(threading.get_ident())
        try:
            callback(nbytes)
        finally:
            self._running.discard(threading.get_ident())


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
