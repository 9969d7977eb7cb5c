"""The hooks that a backend plugin implements."""

import pluggy

from madl.backends.protocol import Backend

hookspec = pluggy.HookspecMarker("madl")
hookimpl = pluggy.HookimplMarker("madl")


@hookspec
def madl_devices() -> list[str]:  # type: ignore[empty-body]  # a specification
    """Return the devices of this plugin's kind that can be opened now."""


@hookspec(firstresult=True)
def madl_open(device: str) -> Backend | None:
    """Return a backend for ``device``, or None when it is not of this plugin's kind.

    Args:
        device: A kind and an index, as in ``"cuda:0"``, or a kind alone.
    """
