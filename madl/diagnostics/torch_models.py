"""The former path of ``madl.diagnostics.torch.models``."""

from madl.diagnostics.torch.models import AllocatorSettings as AllocatorSettings
