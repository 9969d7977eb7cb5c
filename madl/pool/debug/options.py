"""Whether a pool is in debug mode, and what its device lets it do there."""

from typing import Any, Literal, NamedTuple, cast

from madl import settings
from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability, GuardPagesBackend, HugePages
from madl.errors import MissingCapabilityError
from madl.pool.debug.patterns import HostBytes, guard_bytes_of

Debug = Literal["pages"] | bool | None
"""Guard bytes, guard pages as well, or nothing; ``None`` asks the settings."""


class DebugOptions(NamedTuple):
    """What a pool's debug mode consists of, besides its class."""

    front_nbytes: int = 0
    """Before each block's first byte, for guards."""
    has_guard_pages: bool = False
    """Whether large blocks lie between OS pages that nobody may touch."""

    @staticmethod
    def resolve(
        backend: CountedBackend,
        debug: Debug,
        *,
        zero: object,
        pooling: bool | None,
        huge_pages: HugePages,
    ) -> "DebugOptions":
        """Return what is in force on a device; settings ask for what it can do.

        Raises:
            MissingCapabilityError: The device cannot do what ``debug`` asks for.
            ValueError: Guard pages are asked for, and no pooling.
        """
        wanted = debug_wanted(debug, zero=zero)
        if not wanted:
            return DebugOptions()
        is_asked = debug is not None
        access = guard_bytes_of(backend, is_asked=is_asked)
        has_guard_pages = wanted == "pages" and isinstance(access, HostBytes)
        if is_asked and wanted == "pages":
            if pooling is False:
                raise ValueError(
                    "debug='pages' needs a pool that places blocks, got pooling=False; "
                    "leave out one of them"
                )
            if not has_guard_pages:
                raise MissingCapabilityError(
                    backend.device, "OS pages that guard blocks", "debug=True"
                )
        if has_guard_pages:
            has_guard_pages = _choose_guard_pages(backend, huge_pages, is_asked)
        return DebugOptions(access.front_nbytes, has_guard_pages)


def debug_wanted(debug: Debug, *, zero: object = False) -> Debug:
    """Return what is asked for, by an argument or else by the settings.

    Raises:
        TypeError: It is nothing that could be asked for.
        ValueError: Zeros are asked for as well.
        ConfigurationError: ``MADL_DEBUG`` is nothing that could be asked for.
    """
    if debug is None:
        return False if zero else cast("Debug", settings.read("debug"))
    if debug and zero:
        raise ValueError(
            f"debug={debug!r} fills blocks so that a wrong use is seen, zero={zero!r} "
            "so that nothing is; leave out one of them"
        )
    if debug is True or debug is False or debug == "pages":
        return debug
    raise TypeError(f"debug must be True, False, 'pages' or None, got {debug!r}")


def check_class(pool: Any, debug: Debug, *, zero: object) -> None:  # noqa: ANN401  # Pool, which is above this
    """Refuse options that another class than that of a new pool is for.

    Raises:
        ValueError: They came to ``Pool.__init__`` alone, as from a derived class.
    """
    if bool(debug_wanted(debug, zero=zero)) != pool.is_debugging:
        name = type(pool).__name__
        made = "in" if pool.is_debugging else "without"
        raise ValueError(
            f"{name} passes debug={debug!r} and zero={zero!r} to Pool.__init__ when "
            f"its pool has been made {made} debug mode, by what Pool.__new__ got. Try: "
            f"{name}(debug={bool(debug)}), or a __new__ that passes on the same"
        )


def _choose_guard_pages(
    backend: CountedBackend,
    huge_pages: HugePages,
    is_asked: bool,  # as in resolve
) -> bool:
    """Let the backend keep everybody off what is not committed; return whether."""
    try:
        if huge_pages == "explicit":  # each is all of it accessible, or none
            raise MissingCapabilityError(
                backend.device, "guard pages beside huge ones", "leave out huge_pages="
            )
        if Capability.GUARD_PAGES not in backend.capabilities:
            raise MissingCapabilityError(
                backend.device, "OS pages that guard blocks", "debug=True"
            )
        cast("GuardPagesBackend", backend.backend).choose_guard_pages()
    except MissingCapabilityError:
        if is_asked:
            raise
        return False
    return True
