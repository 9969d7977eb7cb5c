"""Discovery of plugins by entry points and settings; each is imported on first use.

pluggy's own loader stops at the first plugin that fails to import; here a broken one
fails only those who open its devices. Each has a plugin manager of its own, so that an
invalid hook is an error of that plugin alone.
"""

from collections.abc import Callable, Container, Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple, cast

from madl import settings
from madl.errors import BackendNotFoundError
from madl.settings.known import SETTINGS

if TYPE_CHECKING:
    from pluggy import PluginManager

GROUP = "madl"
NO_AUTOLOAD = SETTINGS["disable_plugin_autoload"].variable
"""Whether entry points are not looked at."""
NAMED = SETTINGS["plugins"].variable
"""Modules to use as plugins, autoload or not.

A module's kind is its last name without ``madl_``, or is said before it, as in
``nvme=my.module``.
"""


class Claim(NamedTuple):
    """A distribution or module that claims to open the devices of a kind."""

    kind: str
    distribution: str
    """Its name and version: ``"madl-nvme 1.0"``. Or where the module was named."""
    module: str
    load: Callable[[], object]


class Plugins:
    """Every claim of this process, and the plugins that were imported for one.

    Args:
        reserved: madl's own kinds, and what stands before an underscore in others.
    """

    def __init__(self, reserved: Container[str]) -> None:
        self._is_automatic = not settings.read("disable_plugin_autoload")
        found = _find_claims(is_automatic=self._is_automatic)
        self.claims = sorted(found, key=lambda claim: claim[:3])
        self._reserved = reserved
        self._loaded: dict[Claim, PluginManager] = {}

    def kinds(self) -> set[str]:
        """Return the kinds that are claimed and not reserved."""
        kinds = {claim.kind for claim in self.claims}
        return {kind for kind in kinds if kind.partition("_")[0] not in self._reserved}

    def load(self, kind: str) -> "PluginManager":
        """Import the plugin of a kind, and return what calls its hooks.

        Raises:
            BackendNotFoundError: No plugin claims the kind, or two do.
            Exception: What its import, or registering its hooks, raises.
        """
        claims = [claim for claim in self.claims if claim.kind == kind]
        if not claims:
            reason = f"no backend of kind {kind!r}"
            if not self._is_automatic:
                reason += f"; {NO_AUTOLOAD} is set, so only {NAMED} names plugins"
            raise BackendNotFoundError(kind, (), reason)
        for claim in claims:
            self.check_claim(claim)
        return self.load_claim(claims[0])

    def load_claim(self, claim: Claim) -> "PluginManager":
        """Import the plugin behind a claim, and return what calls its hooks."""
        manager = self._loaded.get(claim)
        if manager is None:
            import pluggy

            from madl.backends import hookspecs

            manager = pluggy.PluginManager("madl")
            manager.add_hookspecs(hookspecs)
            manager.register(claim.load(), claim.kind)
            manager = self._loaded.setdefault(claim, manager)
        return manager

    def check_claim(self, claim: Claim) -> None:
        """Raise for a kind that is reserved, malformed, or claimed twice."""
        reason = ""
        others = [one for one in self.claims if one.kind == claim.kind]
        if claim.kind.partition("_")[0] in self._reserved:
            reason = f"kind {claim.kind!r} is reserved for madl's own backends"
        elif not claim.kind.isidentifier() or claim.kind.lower() != claim.kind:
            reason = f"{claim.kind!r} is no kind; one is named like 'cuda'"
        elif len(others) > 1:
            names = " and ".join(one.distribution for one in others)
            reason = f"{names} claim kind {claim.kind!r}; uninstall all but one"
        if reason:
            raise BackendNotFoundError(claim.kind, (), reason)


def _find_claims(*, is_automatic: bool) -> Iterator[Claim]:
    named = list(_named())
    modules = {module for module, _ in named}
    installed = set()
    for entry in entry_points(group=GROUP):
        if is_automatic or entry.value in modules:
            installed.add((entry.value, entry.name))
            package = entry.dist
            origin = f"{package.name} {package.version}" if package else "unknown"
            yield Claim(entry.name, origin, entry.value, entry.load)
    for module, kind in named:
        if (module, kind) not in installed:
            yield Claim(kind, NAMED, module, partial(import_module, module))


def _named() -> Iterator[tuple[str, str]]:
    """Yield each module that the setting names, and its kind."""
    for item in cast("tuple[str, ...]", settings.read("plugins")):
        kind, _, module = item.rpartition("=")
        if module:
            last = module.rpartition(".")[2].removeprefix("madl_")
            yield module.strip(), kind.strip() or last
