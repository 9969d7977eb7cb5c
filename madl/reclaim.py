"""What is tried, in which order, before a request fails."""

import functools
import gc
from collections.abc import Callable, Iterator
from typing import NamedTuple


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
        except (
            Exception
        ) as error:  # the user's code; its error becomes the context of ours
            return error
        return None


class Reclaimers:
    """The reclaimers of one pool, lowest priority number first, then the collector."""

    def __init__(self) -> None:
        self._registered: list[Reclaimer] = []

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
        """Yield what to try, in order, for a request of ``nbytes`` bytes."""
        for _, callback in self._registered:
            name = getattr(callback, "__qualname__", repr(callback))
            yield Step(f"reclaimer {name}", functools.partial(callback, nbytes))
        yield Step("garbage collection", gc.collect)
