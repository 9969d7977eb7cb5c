"""Placement: integers in, integers out. Offsets, never addresses or devices."""

from madl.core import skiplist

IS_COMPILED = not (skiplist.__file__ or "").endswith(".py")
"""Whether the compiled build of the core is the one that runs."""
