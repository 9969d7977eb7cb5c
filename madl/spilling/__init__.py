"""Memory whose content goes elsewhere while a pool needs the room."""

from madl.spilling.spillable import Spillable

__all__ = ["Spillable"]
