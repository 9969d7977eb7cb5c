"""Models of PyTorch's CUDA allocator: they count what it would reserve.

They are written from what PyTorch documents, and have not been compared with it on a
GPU: how far off they are there is not known.
"""

from madl.diagnostics.torch.models.allocators import (
    ExpandableModel,
    ReserveRefusedError,
    SegmentsModel,
)
from madl.diagnostics.torch.models.settings import (
    UNLIMITED,
    AllocatorSettings,
    settings_of_text,
)

__all__ = [
    "UNLIMITED",
    "AllocatorModel",
    "AllocatorSettings",
    "ReserveRefusedError",
    "model_of",
    "settings_of_text",
]

AllocatorModel = SegmentsModel | ExpandableModel
"""It counts only. After ``allocate`` has raised ReserveRefusedError it is unusable."""


def model_of(
    settings: AllocatorSettings, *, capacity_nbytes: int = UNLIMITED
) -> AllocatorModel:
    """Return the model that the settings choose, of a device with so many bytes."""
    model = ExpandableModel if settings.expandable_segments else SegmentsModel
    return model(settings, capacity_nbytes)
