"""Alias: the protocol of ``Capability.SETTLE``, as in ``protocol``."""

from madl.backends.protocol import SettlingBackend as SettlingBackend
