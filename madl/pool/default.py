"""One pool for each device, made on first use; the pool in use; a device's limit."""

import contextlib
import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

from madl import settings
from madl.backends import registry
from madl.backends.counted import CountedBackend
from madl.backends.protocol import Backend, Capability
from madl.errors import BackendError, ConfigurationError, MissingCapabilityError
from madl.hotpath import Memory
from madl.pool import Pool
from madl.pool.allocate import parts_of
from madl.pool.limits import device_budget
from madl.pool.lock import PoolLock
from madl.pool.options import check_soft_limit
from madl.pool.parts import all_pools
from madl.sizes import parse_nbytes


class _Default(NamedTuple):
    """A default pool, with the lock that knows whether it is closed."""

    pool: Pool
    lock: PoolLock


_pools: dict[str, _Default] = {}
_lock = threading.RLock()  # a signal handler may come while a pool is made
_in_use: "ContextVar[tuple[_Use, ...]]" = ContextVar("madl_pool", default=())


def _after_fork_in_child() -> None:
    """Make the lock anew: the thread that held it in the parent is not here."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def default_pool(device: str = "cpu") -> Pool:
    """Return the device's default pool. Thread-safe.

    The first call makes it, as ``madl.configure`` and the environment say, and so does
    the next after it was closed.

    Raises:
        BackendNotFoundError: No backend opens the device.
        MissingCapabilityError: The device cannot honour a setting.
        TypeError: ``device`` is no name.
        ValueError: A setting does not suit the device.
    """
    try:
        found = _pools.get(device)
    except TypeError:  # a list, say: it has no hash
        found = None
    # Not pool.is_closed: a property takes as long as an allocation.
    if found is None or found.lock.is_closed:
        with _lock:
            found = _open(device)
    return found.pool


def _open(device: str) -> _Default:
    """Return the pool that all names of a device share: ``cpu`` is ``cpu:0``."""
    if not isinstance(device, str):
        raise TypeError(
            "device must be a name such as 'cpu' or 'cuda:0', "
            f"got {device!r} ({type(device).__name__})"
        )
    found = _pools.get(device)
    if found is None or found.lock.is_closed:
        backend = registry.open_device(device)
        found = _pools.get(backend.device)
        if found is None or found.lock.is_closed:
            found = _pools[backend.device] = _default(_made(backend))
        _pools[device] = found
    return found


def _default(pool: Pool) -> _Default:
    return _Default(pool, parts_of(pool).lock)


def _made(backend: Backend) -> Pool:
    """Return a pool with the options that settings give the device."""
    options: dict[str, Any] = settings.default_pool_options(
        backend.device, registry.kinds
    )
    try:
        return Pool(backend, **options)
    except (ValueError, MissingCapabilityError) as error:
        blamed = settings.origins(options)
        if blamed and not isinstance(error, ConfigurationError):  # which says itself
            error.add_note(f"Of the settings, {blamed}.")
        raise


def set_default_pool(pool: Pool) -> None:
    """Make a pool the default of its device, until it is closed. Thread-safe.

    What is live in the one before stays there.
    """
    with _lock:
        made = _default(pool)
        for name, before in _pools.copy().items():
            if before.pool.device == pool.device:
                _pools[name] = made
        _pools[pool.device] = made


def open_pools() -> tuple[Pool, ...]:
    """Return the default pools that were made and are not closed."""
    found = dict.fromkeys(_pools.copy().values())
    return tuple(one.pool for one in found if not one.lock.is_closed)


class _Use(NamedTuple):
    """One ``with use_pool(...)``, told from others of the same pool by ``is``."""

    pool: Pool


@contextlib.contextmanager
def use_pool(pool: Pool) -> Iterator[Pool]:
    """Let ``madl.allocate`` take from ``pool`` inside the ``with`` block.

    Threads and asyncio tasks do not disturb each other: it is a context variable. A
    generator that is left inside the block takes its pool along to its caller; blocks
    may end in any order.
    """
    if not isinstance(pool, Pool):
        raise TypeError(
            f"pool must be a Pool, got {pool!r} ({type(pool).__name__}); "
            f"try use_pool(Pool({pool!r}))"
        )
    use = _Use(pool)
    _in_use.set((*_in_use.get(), use))
    try:
        yield pool
    finally:
        # Not what was before: of two generators, the first may end first.
        _in_use.set(tuple(one for one in _in_use.get() if one is not use))


def pool_in_use(device: str | None = None) -> Pool:
    """Return the pool that ``allocate`` takes from.

    Raises:
        ValueError: ``device`` is not the device of the pool set by ``use_pool``.
    """
    uses = _in_use.get()
    if not uses:
        return default_pool("cpu" if device is None else device)
    pool = uses[-1].pool
    if device not in (None, pool.device, f"{pool.device}:0"):
        raise ValueError(
            f"the pool in use is of device {pool.device!r}, not {device!r}; leave out "
            "device=, or allocate outside of use_pool"
        )
    return pool


def allocate(
    nbytes: int | str,
    *,
    device: str | None = None,
    alignment: int | None = None,
    stream: object = None,
    tag: str | None = None,
) -> Memory:
    """Allocate from the pool in use, or else from the device's default pool.

    Args:
        nbytes: Bytes, or a text such as ``"64 MiB"``.
        device: ``"cpu"`` when None.
        alignment: As for ``Pool.allocate``.
        stream: As for ``Pool.allocate``.
        tag: As for ``Pool.allocate``.

    Returns:
        Memory of at least ``nbytes`` bytes; its content is undefined.

    Raises:
        OutOfMemoryError: As for ``Pool.allocate``.
        BackendNotFoundError: No backend opens the device.

    Thread-safe.
    """
    pool = pool_in_use(device)
    if alignment is stream is tag is None:  # without options it is quickest
        return pool.allocate(nbytes)
    return pool.allocate(nbytes, alignment=alignment, stream=stream, tag=tag)


def trim(keep: int | str = 0) -> int:
    """Trim every pool of this process, of all devices, as ``Pool.trim`` does.

    It is the one call to make when a system says that memory is low; on Android, from
    ``onTrimMemory``. There, what is idle goes back by MADV_DONTNEED.

    Args:
        keep: Bytes that each pool may keep committed.

    Returns:
        Bytes given back.

    Raises:
        BackendError: A device failed, the first one that did. The others were trimmed.

    Complexity: that of ``Pool.trim``, for each pool. Thread-safe.
    """
    released, errors = 0, []
    for pool, _ in all_pools():
        try:
            released += cast("Pool", pool).trim(keep)
        except BackendError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return released


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
