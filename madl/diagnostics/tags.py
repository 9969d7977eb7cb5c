"""Labels for what a program allocates: ``with madl.tag("weights"):``."""

import contextlib
from collections.abc import Iterator

from madl import events, hotpath
from madl.errors import MissingCapabilityError


@contextlib.contextmanager
def tag(name: str, *, limit: int | str | None = None) -> Iterator[str]:
    """Label all allocations of this thread or asyncio task inside the block.

    Nested tags join with a slash: ``model`` around ``encoder`` is ``model/encoder``.

    Args:
        name: Any text without a slash.
        limit: Not effective yet.

    Raises:
        TypeError: ``name`` is no text.
        ValueError: ``name`` is empty, has a slash, or is more than one line.
        MissingCapabilityError: A limit was given.

    Allocations cost more while any tag is active in any thread.
    """
    if not isinstance(name, str):
        raise TypeError(f"a tag must be a text, got {name!r} ({type(name).__name__})")
    if not name or "/" in name or not name.isprintable():
        raise ValueError(
            f"a tag must be printable, without a slash, and not empty, got {name!r}"
        )
    if limit is not None:
        raise MissingCapabilityError(
            "this release", "limits of tags yet", "a limit of the pool: Pool(limit=)"
        )
    outer = events.current_tag.get()
    token = events.current_tag.set(name if outer is None else f"{outer}/{name}")
    hotpath.change_watch_count(+1)
    try:
        yield events.current_tag.get() or name
    finally:
        hotpath.change_watch_count(-1)
        events.current_tag.reset(token)
