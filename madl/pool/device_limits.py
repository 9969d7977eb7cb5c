"""Limits that all pools of a device share: ``madl.limit_device("cpu", "8 GiB")``."""

from madl.backends import registry
from madl.backends.counted import CountedBackend
from madl.backends.protocol import Backend, Capability
from madl.pool.limits import device_budget
from madl.pool.options import check_soft_limit
from madl.sizes import parse_nbytes


def limit_device(
    device: str | Backend,
    limit: int | str | None,
    *,
    soft_limit: int | str | None = None,
) -> None:
    """Bound what all pools of a device may have committed together, from now on.

    What is committed already stays, and counts. A pool's own limit holds besides.

    Args:
        device: A device's name, or a backend object.
        limit: Bytes; ``None`` for no limit any more.
        soft_limit: Bytes; more is allowed, with a ``SoftLimitWarning``.

    Raises:
        BackendNotFoundError: No backend opens the device.
        ValueError: The name is of a simulated device. Each is one of its own, so the
            name reaches no pool: pass the object that the pools were made with.
        TypeError, ValueError, OverflowError: A limit is no byte count.

    Thread-safe.
    """
    if isinstance(device, str):
        backend = registry.open_device(device)
        if Capability.SIMULATED in backend.capabilities:
            raise ValueError(
                f"a limit of {device!r} would reach no pool: each simulated device is "
                "one of its own. Try: backend = SimBackend(), Pool(backend) and "
                "limit_device(backend, ...)"
            )
    else:
        backend = device
    limit_nbytes = None if limit is None else parse_nbytes(limit, name="limit")
    soft_limit_nbytes = check_soft_limit(soft_limit, limit_nbytes)
    device_budget(CountedBackend(backend)).set_limits(limit_nbytes, soft_limit_nbytes)
