"""Settings: what a program, or its environment, wants of madl as a whole."""

from madl.settings.current import (
    LateSettingWarning,
    SettingState,
    configuration,
    configure,
    default_pool_options,
    origins,
    read,
)

__all__ = [
    "LateSettingWarning",
    "SettingState",
    "configuration",
    "configure",
    "default_pool_options",
    "origins",
    "read",
]
