"""Tags: labels of allocations, by thread or task: ``with madl.tag("weights"):``."""

import contextlib
from collections.abc import Iterator

from madl.pool import tracking
from madl.pool.options import check_soft_limit
from madl.pool.tracking import TagPath, TagScope
from madl.sizes import parse_nbytes


@contextlib.contextmanager
def tag(
    name: str, *, limit: int | str | None = None, soft_limit: int | str | None = None
) -> Iterator[str]:
    """Label all allocations of this thread or asyncio task inside the block.

    Nested tags join with a slash: ``model`` around ``encoder`` is ``model/encoder``.

    Args:
        name: Any text without a slash.
        limit: Live bytes that the tag, and the tags below it, may have on each device,
            in all pools together. Allocations outside of the block count, but only
            those inside are refused.
        soft_limit: Bytes; more is allowed, with a ``SoftLimitWarning``.

    Raises:
        TypeError: ``name`` is no text, or a limit no byte count.
        ValueError: ``name`` is empty, has a slash, or is more than one line; or a limit
            is malformed.

    A generator that yields inside the block leaves its tag to its caller: put ``with``
    around the allocations, not around a ``yield``. Blocks may end in any order.

    Allocations cost more while any tag is active in any thread.
    """
    if not isinstance(name, str):
        raise TypeError(f"a tag must be a text, got {name!r} ({type(name).__name__})")
    if not name or "/" in name or not name.isprintable():
        raise ValueError(
            f"a tag must be printable, without a slash, and not empty, got {name!r}"
        )
    limit_nbytes = None if limit is None else parse_nbytes(limit, name="limit")
    soft_limit_nbytes = check_soft_limit(soft_limit, limit_nbytes)
    scope = TagScope(name, limit_nbytes, soft_limit_nbytes)
    path = TagPath.of((*_scopes(), scope))
    assert path is not None, "it has a scope"
    try:
        tracking.current_tag.set(path)
        with tracking.wanted():
            yield path.name
    finally:
        # Not a reset to the path before: of two generators, the first may end first.
        left = tuple(one for one in _scopes() if one is not scope)
        tracking.current_tag.set(TagPath.of(left))


def _scopes() -> tuple[TagScope, ...]:
    path = tracking.current_tag.get()
    return () if path is None else path.scopes
