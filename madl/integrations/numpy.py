"""A pool behind NumPy's own arrays: the large ones take their memory from it.

What NumPy calls is compiled (``native/numpy_handler``). NumPy keeps its allocator in a
context variable, and every array a reference to the one that it was made with.
"""

import importlib
from contextvars import ContextVar
from typing import Any

from madl import hotpath
from madl.errors import MissingCapabilityError
from madl.pool import Pool
from madl.pool import default as defaults
from madl.sizes import format_nbytes, parse_nbytes

_handlers: dict[tuple[Pool, int], object] = {}
"""One for each pool and threshold, as NumPy needs them to the end of the process."""


class Route:
    """Sends NumPy's allocations of a context to a pool: made by ``route``.

    Use it in a ``with`` statement, or call ``install`` and ``uninstall``. One route
    may be used by any number of threads and tasks, and within itself.
    """

    def __init__(self, pool: Pool, threshold_nbytes: int, handler: object) -> None:
        self.pool = pool
        self.threshold_nbytes = threshold_nbytes
        self._handler = handler

    def install(self) -> None:
        """Route from here on, in this thread or task and those that inherit from it.

        As the ``initializer`` of a ``ThreadPoolExecutor`` it reaches its threads.
        """
        native = _native()
        native.raise_kept()
        _replaced.set((*_replaced.get(), (self, native.set_handler(self._handler))))

    def uninstall(self) -> None:
        """Let NumPy allocate as it did before ``install``.

        Raises:
            ValueError: The last route of this thread or task is another one, or none.
        """
        routes = _replaced.get()
        if not routes or routes[-1][0] is not self:
            last = routes[-1][0] if routes else "none"
            raise ValueError(
                f"{self} is not the last route of this thread or task, which is {last};"
                " call uninstall() where install() was called, the last one first"
            )
        native = _native()
        native.set_handler(routes[-1][1])
        _replaced.set(routes[:-1])
        native.raise_kept()  # last: the route is uninstalled whatever it raises

    def __enter__(self) -> Pool:
        self.install()
        return self.pool

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.uninstall()

    def __repr__(self) -> str:
        nbytes = format_nbytes(self.threshold_nbytes)
        return f"<madl route of NumPy's arrays from {nbytes} to {self.pool!r}>"


_replaced: ContextVar[tuple[tuple[Route, object], ...]] = ContextVar(
    "madl_numpy_routes", default=()
)
"""The routes of this context, and the handler that each one replaced."""


def route(threshold: int | str = "1 MiB", pool: Pool | None = None) -> Route:
    """Let NumPy take arrays of at least ``threshold`` bytes from a pool.

    Smaller arrays are NumPy's own, at no cost. An array keeps the memory that it was
    made over: it may outlive the ``with`` block and ``pool.close()``, and any thread
    may free it. The pool itself lives to the end of the process.

    Args:
        threshold: Bytes, or a text such as ``"1 MiB"``; at least 1.
        pool: A pool that the CPU can reach; None for the one that ``madl.allocate``
            takes from.

    Returns:
        A context manager, which returns the pool, with ``install`` and ``uninstall``.

    Raises:
        MissingCapabilityError: This madl is pure Python, the CPU cannot reach the
            pool's memory, or the pool is in debug mode.
    """
    nbytes = parse_nbytes(threshold, name="threshold")
    if nbytes == 0:
        raise ValueError("threshold must be positive, got 0")
    native = _native()
    if pool is None:
        pool = defaults.pool_in_use()
    elif not isinstance(pool, Pool):
        raise TypeError(f"pool must be a Pool, got {pool!r} ({type(pool).__name__})")
    handler = _handlers.get((pool, nbytes))
    if handler is None:  # two threads may both make one; the first is kept
        made = native.make_handler(pool, nbytes)
        handler = _handlers.setdefault((pool, nbytes), made)
    return Route(pool, nbytes, handler)


def _native() -> Any:  # noqa: ANN401  # a module that only one build has
    if not hotpath.IS_COMPILED:
        raise MissingCapabilityError(
            "a madl of pure Python",
            "functions in C, without which NumPy's users would lose their exceptions",
            hotpath.HOW_TO_COMPILE,
        )
    return importlib.import_module("madl.native.numpy_handler")
