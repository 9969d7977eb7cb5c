"""The hooks by which a backend is found, for plugins and for madl's own backends.

A plugin is a module or an object with one function for each hook, marked with
``madl.backends.hookimpl``. An entry point of the group ``madl`` names it; the entry
point's name is the kind of its devices, the part before the colon::

    [project.entry-points.madl]
    nvme = "madl_nvme"

Only the plugin that a device's kind names is imported to open that device.

The modules of madl's own kinds (``madl.backends.cpu``, ``sim``, ``cuda``, ``opencl``,
``shared``) have functions of the same names and meanings, not marked: they are called
directly, so that opening them does not wait for pluggy to be imported.
"""

import pluggy

from madl.backends.protocol import Backend

hookspec = pluggy.HookspecMarker("madl")
hookimpl = pluggy.HookimplMarker("madl")


@hookspec(firstresult=True)
def madl_devices() -> list[str] | None:
    """Return the devices of this plugin's kind that can be opened now.

    Cheap, and quiet without the hardware: the list is empty then. The first is the one
    that the kind alone opens.
    """


@hookspec(firstresult=True)
def madl_open(device: str) -> Backend | None:
    """Return a new backend for ``device``, or None when there is no such device.

    Args:
        device: A kind and an index, as in ``"cuda:0"``, or a kind alone, for the first
            of its devices.

    Raises:
        BackendNotFoundError: Its driver is absent or refuses; ``reason`` says so in
            words. madl puts the kinds that it knows into the error.
    """
