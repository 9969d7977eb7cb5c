"""Alias: the protocols of what a backend lets its user choose, as in ``protocol``."""

from madl.backends.protocol import GuardPagesBackend as GuardPagesBackend
from madl.backends.protocol import NumaBackend as NumaBackend
from madl.backends.protocol import PrefaultBackend as PrefaultBackend
