"""Where a route holds: in threads, executors and tasks, as context variables do."""

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from madl import Pool
from madl.integrations.numpy import Route, route

pytest.importorskip("madl.native.numpy_handler")

LARGE = 64 << 10


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool("cpu")
    yield pool
    assert pool.stats().live_nbytes == 0
    pool.check()


@pytest.fixture
def inside(pool: Pool) -> Route:
    return route(LARGE, pool)


def is_routed(pool: Pool) -> bool:
    """Return whether a large array comes from the pool, here and now."""
    before = pool.stats().allocation_count
    np.empty(LARGE, np.uint8)
    return pool.stats().allocation_count > before


def test_a_scope_returns_its_pool(pool: Pool, inside: Route) -> None:
    with inside as entered:
        assert entered is pool


def test_an_installed_route_holds_until_it_is_uninstalled(
    pool: Pool, inside: Route
) -> None:
    inside.install()
    assert is_routed(pool)
    inside.uninstall()
    assert not is_routed(pool)


def test_an_exception_ends_a_scope(pool: Pool, inside: Route) -> None:
    with pytest.raises(KeyError), inside:
        raise KeyError

    assert not is_routed(pool)


def test_the_innermost_route_holds(pool: Pool, inside: Route) -> None:
    other = Pool("cpu")
    with inside:
        with route(LARGE, other), inside:
            assert is_routed(pool)
        with route(LARGE, other):
            assert is_routed(other)
            assert not is_routed(pool)
        assert is_routed(pool)


def test_routes_end_in_the_order_in_which_they_began(pool: Pool, inside: Route) -> None:
    outer = route(LARGE, Pool("cpu"))
    outer.install()
    with inside, pytest.raises(ValueError, match="is not the last route") as caught:
        outer.uninstall()
    outer.uninstall()

    assert str(caught.value) == (
        "<madl route of NumPy's arrays from 64.0 KiB to <madl.Pool on cpu: 0 bytes "
        "live>> is not the last route of this thread or task, which is <madl route of "
        "NumPy's arrays from 64.0 KiB to <madl.Pool on cpu: 0 bytes live>>; call "
        "uninstall() where install() was called, the last one first"
    )


def test_what_was_not_installed_is_not_uninstalled(inside: Route) -> None:
    with pytest.raises(ValueError, match="which is none; call uninstall"):
        inside.uninstall()


def test_a_new_thread_starts_without(pool: Pool, inside: Route) -> None:
    found: list[bool] = []
    context = contextvars.Context()  # what a thread starts with, up to Python 3.13
    thread = threading.Thread(target=lambda: found.append(context.run(is_routed, pool)))

    with inside:
        thread.start()
        thread.join()

    assert found == [False]


def test_an_executor_is_initialised_with_it(pool: Pool, inside: Route) -> None:
    with ThreadPoolExecutor(2, initializer=inside.install) as executor:
        found = [executor.submit(is_routed, pool).result() for _ in range(4)]

    assert found == [True] * 4
    assert not is_routed(pool)


def test_a_thread_may_run_in_a_copy_of_the_context(pool: Pool, inside: Route) -> None:
    with ThreadPoolExecutor(1) as executor, inside:
        context = contextvars.copy_context()
        assert executor.submit(context.run, is_routed, pool).result()


def test_tasks_do_not_disturb_each_other(pool: Pool, inside: Route) -> None:
    async def with_route(begun: asyncio.Event, end: asyncio.Event) -> bool:
        with inside:
            begun.set()
            await end.wait()
            return is_routed(pool)

    async def without(begun: asyncio.Event, end: asyncio.Event) -> bool:
        await begun.wait()
        found = is_routed(pool)
        end.set()
        return found

    async def main() -> tuple[bool, bool]:
        begun, end = asyncio.Event(), asyncio.Event()
        found, other = await asyncio.gather(with_route(begun, end), without(begun, end))
        return found, other

    assert asyncio.run(main()) == (True, False)


def test_tasks_inherit_a_route_and_their_threads_do(pool: Pool, inside: Route) -> None:
    async def task() -> tuple[bool, bool]:
        return is_routed(pool), await asyncio.to_thread(is_routed, pool)

    with inside:
        assert asyncio.run(task()) == (True, True)
