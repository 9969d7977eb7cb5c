"""Settings of PyTorch's allocator, and how they round a request."""

import re
from typing import Any, NamedTuple

from madl.diagnostics.traces.trace import NBYTES_LIMIT
from madl.sizes import align_up

UNLIMITED = NBYTES_LIMIT
_PARTS = re.compile(r"(\w+)\s*:\s*(\[[^\]]*\]|[^,\[\]]*)\s*(?:,|$)")
_MOST_DIVISIONS = 64

MIB = 1 << 20
BLOCK_NBYTES = 512
"""Every size is a multiple of it, and none is smaller."""
SMALL_NBYTES = MIB
"""Requests up to it share small segments; larger ones have a pool of their own."""
SMALL_SEGMENT_NBYTES = 2 * MIB
LARGE_SEGMENT_NBYTES = 20 * MIB
"""Of requests below ``OWN_SEGMENT_NBYTES``."""
OWN_SEGMENT_NBYTES = 10 * MIB
SEGMENT_GRANULARITY = 2 * MIB


class AllocatorSettings(NamedTuple):
    """What ``PYTORCH_ALLOC_CONF`` says, as far as the models know it.

    Before PyTorch 2.9 the variable is ``PYTORCH_CUDA_ALLOC_CONF``.

    Attributes:
        expandable_segments: Whether segments are ranges of addresses that grow.
        max_split_nbytes: Blocks that large are not split.
        roundup_power2_divisions: ``(below, divisions)``, rising: how sizes below so
            many bytes are rounded.
        garbage_collection_threshold: The part of the memory from which old cached
            segments are freed; 0 is never.
    """

    expandable_segments: bool = False
    max_split_nbytes: int = UNLIMITED
    roundup_power2_divisions: tuple[tuple[int, int], ...] = ()
    garbage_collection_threshold: float = 0.0

    def as_text(self) -> str:
        """Return what to set the variable to; nothing for PyTorch's defaults.

        >>> from madl.diagnostics.torch.models import AllocatorSettings
        >>> AllocatorSettings(max_split_nbytes=128 << 20).as_text()
        'max_split_size_mb:128'
        """
        parts = []
        if self.expandable_segments:
            parts.append("expandable_segments:True")
        if self.max_split_nbytes != UNLIMITED:
            parts.append(f"max_split_size_mb:{self.max_split_nbytes >> 20}")
        if self.roundup_power2_divisions:
            parts.append(f"roundup_power2_divisions:{self._divisions_as_text()}")
        if self.garbage_collection_threshold:
            threshold = f"{self.garbage_collection_threshold:g}"
            parts.append(f"garbage_collection_threshold:{threshold}")
        return ",".join(parts)

    def divisions_for(self, nbytes: int) -> int:
        """Return into how many parts the sizes up to the next power are divided."""
        for below, divisions in self.roundup_power2_divisions:
            if nbytes < below:
                return divisions
        return 0

    def _divisions_as_text(self) -> str:
        if len(self.roundup_power2_divisions) == 1:
            return str(self.roundup_power2_divisions[0][1])
        pairs = (
            f"{'>' if below == UNLIMITED else below >> 20}:{divisions}"
            for below, divisions in self.roundup_power2_divisions
        )
        return f"[{','.join(pairs)}]"


def settings_of_text(text: str) -> AllocatorSettings:
    """Return the settings in a text such as ``"expandable_segments:True"``.

    What the models do not know is skipped: it changes the time, or the backend.

    Raises:
        ValueError: A value is not what it should be.
    """
    found: dict[str, Any] = {}
    for key, value in _PARTS.findall(text):
        said = value.strip()
        if key == "expandable_segments":
            found[key] = said.lower() == "true"
        elif key == "max_split_size_mb":
            found["max_split_nbytes"] = _whole(key, said, NBYTES_LIMIT >> 20) << 20
        elif key == "roundup_power2_divisions":
            found[key] = tuple(_divisions(key, said))
        elif key == "garbage_collection_threshold":
            found[key] = _part(key, said)
    return AllocatorSettings(**found)


def _divisions(key: str, text: str) -> list[tuple[int, int]]:
    if not text.startswith("["):
        return [(UNLIMITED, _whole(key, text, _MOST_DIVISIONS + 1))]
    pairs = []
    for pair in text.strip("[]").split(","):
        below, _, divisions = pair.partition(":")
        limit = NBYTES_LIMIT >> 20
        mib = limit if below.strip() == ">" else _whole(key, below, limit)
        pairs.append((mib << 20, _whole(key, divisions, _MOST_DIVISIONS + 1)))
    return sorted(pairs)


def _whole(key: str, text: str, limit: int) -> int:
    digits = text.strip()
    if not re.fullmatch(r"[0-9]{1,18}", digits) or not 0 < int(digits) < limit:
        raise ValueError(f"{key} must be 1..{limit - 1}, got {digits[:40]!r}")
    return int(digits)


def _part(key: str, text: str) -> float:
    if not re.fullmatch(r"0?\.[0-9]{1,18}", text):
        raise ValueError(f"{key} must lie between 0 and 1, got {text[:40]!r}")
    return float(text)


def block_nbytes(nbytes: int, settings: AllocatorSettings) -> int:
    """Return what a request takes of a segment.

    >>> block_nbytes(1200, AllocatorSettings())
    1536
    """
    if nbytes < BLOCK_NBYTES:
        return BLOCK_NBYTES
    divisions = settings.divisions_for(nbytes)
    if divisions > 1 and nbytes > BLOCK_NBYTES * divisions:
        return _next_division(nbytes, divisions)
    return align_up(nbytes, BLOCK_NBYTES)


def segment_nbytes(block: int) -> int:
    """Return what is taken from the device when no cached block fits."""
    if block <= SMALL_NBYTES:
        return SMALL_SEGMENT_NBYTES
    if block < OWN_SEGMENT_NBYTES:
        return LARGE_SEGMENT_NBYTES
    return align_up(block, SEGMENT_GRANULARITY)


def _next_division(nbytes: int, divisions: int) -> int:
    """Round up to the next of ``divisions`` equal steps between two powers of two."""
    power = 1 << (nbytes.bit_length() - 1)
    if power == nbytes:
        return nbytes
    step = max(power // divisions, 1)
    return power + align_up(nbytes - power, step)
