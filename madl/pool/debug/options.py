"""Whether a pool is in debug mode, and what its device lets it do there."""

from typing import Literal, NamedTuple, cast

from madl import settings
from madl.backends.counted import CountedBackend
from madl.backends.protocol import Capability, GuardPagesBackend, HugePages
from madl.errors import MissingCapabilityError
from madl.pool.debug.patterns import GuardBytes, HostBytes, guard_bytes_of

Debug = Literal["pages"] | bool | None
"""Guard bytes, guard pages as well, or nothing; ``None`` asks the settings."""


class DebugOptions(NamedTuple):
    """What a pool's debug mode consists of."""

    is_on: bool = False
    front_nbytes: int = 0
    """Before each block's first byte, for guards."""
    has_guard_pages: bool = False
    """Whether large blocks lie between OS pages that cannot be touched."""

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
        if is_asked and wanted == "pages" and pooling is False:
            raise ValueError(
                "debug='pages' needs a pool that places blocks, got pooling=False; "
                "leave out one of them"
            )
        has_guard_pages = wanted == "pages"
        if has_guard_pages:
            try:
                _choose_guard_pages(backend, access, huge_pages)
            except MissingCapabilityError:
                if is_asked:
                    raise
                has_guard_pages = False
        return DebugOptions(
            is_on=True,
            front_nbytes=access.front_nbytes,
            has_guard_pages=has_guard_pages,
        )


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


def _choose_guard_pages(
    backend: CountedBackend, access: GuardBytes, huge_pages: HugePages
) -> None:
    """Let the backend make what is not committed inaccessible, or raise."""
    is_host = isinstance(access, HostBytes)
    if is_host and huge_pages == "explicit":  # each is all of it accessible, or none
        raise MissingCapabilityError(
            backend.device, "guard pages beside huge ones", "leave out huge_pages="
        )
    if not is_host or Capability.GUARD_PAGES not in backend.capabilities:
        raise MissingCapabilityError(
            backend.device, "OS pages that guard blocks", "debug=True"
        )
    cast("GuardPagesBackend", backend.backend).choose_guard_pages()
