"""Enumeration of OpenCL devices, and their names and contexts.

``opencl:N`` counts over all devices of all platforms: first those that are no CPU,
then by the platform's name and version, then as the platform has them.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from madl.backends.opencl.calls import note_opening
from madl.backends.registry import how_many
from madl.errors import BackendNotFoundError

if TYPE_CHECKING:
    import pyopencl as cl

KIND = "opencl"
MANAGED_KIND = "opencl_managed"

MEMORIES = ("buffer", "managed", "fine", "coarse")
"""Kinds of memory; ``managed`` is the finer one that a device has."""

_NO_SUCH_PLATFORM = -1001  # CL_PLATFORM_NOT_FOUND_KHR

_contexts: "dict[cl.Device, cl.Context]" = {}


class Target(NamedTuple):
    """Where a backend takes its memory from."""

    context: "cl.Context"
    device: "cl.Device"
    queue: "cl.CommandQueue | None"
    """The queue that was named, for work without a stream."""


def all_devices() -> "list[cl.Device]":
    """Return the devices that can be used now, in the order of their names.

    Raises:
        BackendNotFoundError: pyopencl is missing, or there is no platform.
    """
    try:
        import pyopencl as cl
    except ImportError as error:
        reason = f"pyopencl cannot be imported: {error}; pip install 'madl[opencl]'"
        raise BackendNotFoundError(KIND, (KIND,), reason) from error
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        reason = "there is no OpenCL platform, the driver of a device"
        if error.code != _NO_SUCH_PLATFORM:
            reason = f"OpenCL shows no platforms: {error}"
        raise BackendNotFoundError(KIND, (KIND,), reason) from error
    found = []
    for platform in platforms:
        for number, device in enumerate(_devices_of(platform)):
            is_cpu = bool(device.type & cl.device_type.CPU)
            key = (is_cpu, platform.name, platform.version, number)
            found.append((key, device))
    return [device for _, device in sorted(found, key=lambda pair: pair[0])]


def _devices_of(platform: "cl.Platform") -> "list[cl.Device]":
    """Return a platform's devices; one that has none, or fails, hides no other."""
    import pyopencl as cl

    try:
        return [device for device in platform.get_devices() if device.available]
    except cl.Error:
        return []


def name_of(device: "cl.Device", kind: str) -> str:
    """Return ``"opencl:N"``, or the kind alone for a part of a device."""
    for number, one in enumerate(all_devices()):
        if one == device:
            return f"{kind}:{number}"
    return kind


def resolve(target: Any) -> Target:  # noqa: ANN401  # a name or an object of pyopencl
    """Return the context and device that a name or an object of pyopencl means.

    Raises:
        BackendNotFoundError: No device has the name.
        ForkError: This is the child of a process that has opened a device.
        ValueError: A context of several devices; a queue that keeps no order.
        TypeError: It is neither.
    """
    note_opening(target if isinstance(target, str) else KIND)
    if isinstance(target, str):
        device = _device_named(target)
        return Target(_context_of(device), device, None)
    all_devices()  # raises where pyopencl is missing
    import pyopencl as cl

    if isinstance(target, cl.Device):
        return Target(_context_of(target), target, None)
    if isinstance(target, cl.Context):
        devices = target.devices
        if len(devices) > 1:
            raise ValueError(
                f"the context has {len(devices)} devices and a backend is for one; "
                "pass a CommandQueue or a Device"
            )
        return Target(target, devices[0], None)
    if isinstance(target, cl.CommandQueue):
        check_order(target)
        return Target(target.context, target.device, target)
    raise TypeError(
        "target must be a device's name or a pyopencl Device, Context or "
        f"CommandQueue, got {target!r} ({type(target).__name__})"
    )


def memory_of(device: "cl.Device", wanted: str) -> str:
    """Return ``buffer``, ``fine`` or ``coarse`` for a kind of memory of a device.

    Raises:
        ValueError: There is no such kind.
        BackendNotFoundError: The device does not have it.
    """
    if wanted not in MEMORIES:
        raise ValueError(f"memory must be one of {', '.join(MEMORIES)}, got {wanted!r}")
    if wanted == "buffer":
        return wanted
    for grain in ("fine", "coarse"):
        if wanted in ("managed", grain) and _has_svm(device, grain):
            return grain
    words = "" if wanted == "managed" else f"{wanted}-grained "
    reason = f"{device.name} has no {words}shared virtual memory"
    raise BackendNotFoundError(name_of(device, MANAGED_KIND), (KIND,), reason)


def _has_svm(device: "cl.Device", grain: str) -> bool:
    import pyopencl as cl

    flags = cl.device_svm_capabilities
    flag = {"fine": flags.FINE_GRAIN_BUFFER, "coarse": flags.COARSE_GRAIN_BUFFER}
    try:
        return bool(device.svm_capabilities & flag[grain])
    except cl.Error:  # it is older than OpenCL 2.0
        return False


def check_order(queue: "cl.CommandQueue") -> None:
    """Raise for a queue that may run its work in any order."""
    import pyopencl as cl

    if queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
        raise ValueError(
            "an out-of-order CommandQueue is no stream: what is queued in it may run "
            "in any order; make one without OUT_OF_ORDER_EXEC_MODE_ENABLE"
        )


def _device_named(name: str) -> "cl.Device":
    kind, _, index = name.partition(":")
    if kind not in (KIND, MANAGED_KIND) or not (index or "0").isdecimal():
        raise BackendNotFoundError(name, (KIND,), f"{KIND} devices are named opencl:0")
    try:
        devices = all_devices()
    except BackendNotFoundError as error:
        raise BackendNotFoundError(name, (KIND,), error.reason) from error
    number = int(index or "0")
    if number >= len(devices):
        reason = how_many(len(devices), "OpenCL device")
        raise BackendNotFoundError(name, (KIND,), reason)
    return devices[number]


def _context_of(device: "cl.Device") -> "cl.Context":
    """Return the one context that all pools of a named device share."""
    import pyopencl as cl

    context = _contexts.get(device)
    if context is None:  # two threads may race: one context is dropped
        context = _contexts.setdefault(device, cl.Context([device]))
    return context
