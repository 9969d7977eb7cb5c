"""One pool for each Dask worker, memory that travels between them, and their report.

Importing this module, wherever, is what lets Dask send a ``Memory``; the plugin
imports it on every worker.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from madl.backends import registry
from madl.hotpath import Memory
from madl.memory.place import is_plain_host
from madl.pool import Pool
from madl.pool import default as defaults
from madl.pool.allocate import parts_of
from madl.sizes import format_nbytes

if TYPE_CHECKING:
    from rich.table import Table

try:
    from dask.sizeof import sizeof
    from distributed import Client, Worker, WorkerPlugin
    from distributed.protocol import dask_deserialize, dask_serialize
except ImportError as error:
    raise ImportError(
        f"madl.integrations.dask needs Dask's distributed ({error}); "
        "pip install 'madl[dask]'",
        name=error.name,
    ) from error

METRIC = "madl"
"""Under this name each worker's figures are in the heartbeat, by device."""


class PoolPlugin(WorkerPlugin):  # type: ignore[misc]  # distributed is not looked at
    """Gives each worker a pool with a limit: ``client.register_plugin(PoolPlugin())``.

    The pool is the default of its device in the worker's process, so that tasks use it
    by ``madl.allocate`` and ``madl.empty``. Workers that join later get theirs too. A
    second registration replaces the first: what is live in a pool stays until it is
    freed. The pool's figures are in every heartbeat, and so in
    ``client.scheduler_info()``, under ``metrics`` and ``"madl"``.

    Args:
        limit: Bytes that each worker may commit; ``None`` for what the device has.
        device: What the pool is of.
        options: As for ``madl.Pool``.
    """

    name = "madl"

    def __init__(
        self,
        limit: int | str | None = None,
        *,
        device: str = "cpu",
        **options: Any,  # noqa: ANN401  # Pool's own, of several types
    ) -> None:
        self.device = device
        self.options = {"limit": limit, **options}
        self._pool: Pool | None = None

    def setup(self, worker: Worker) -> None:
        """Make the worker's pool."""
        self._pool = Pool(self.device, **self.options)
        defaults.set_default_pool(self._pool)
        worker.metrics[METRIC] = _metric

    def teardown(self, worker: Worker) -> None:
        """Close the pool; it gives its memory back as that becomes free."""
        worker.metrics.pop(METRIC, None)
        if self._pool is not None:
            self._pool.close()


class WorkerDevice(NamedTuple):
    """One device as one worker sees it. Sizes in bytes; ``None`` without a pool.

    Attributes:
        worker: The worker's address.
        device: The device, as in ``"cuda:0"``.
        total_nbytes: Memory of the whole device, which other workers may use too.
        available_nbytes: Memory of it that is unused now.
        live_nbytes: Handed out by the worker's pool.
        live_high_water_nbytes: The high-water mark of that.
        committed_nbytes: Taken from the device by the worker's pool.
        limit_nbytes: Bytes that the worker's pool may commit; ``None`` without a limit
            too.
    """

    worker: str
    device: str
    total_nbytes: int
    available_nbytes: int
    live_nbytes: int | None = None
    live_high_water_nbytes: int | None = None
    committed_nbytes: int | None = None
    limit_nbytes: int | None = None


class Report(NamedTuple):
    """Every device of every worker; rich prints those with a pool as a table.

    Attributes:
        devices: A row for each device of each worker.
        failures: What went wrong, by the address of the worker that did not answer.
    """

    devices: tuple[WorkerDevice, ...]
    failures: dict[str, str]

    def __rich__(self) -> "Table":
        from rich.box import SIMPLE_HEAD
        from rich.markup import escape
        from rich.table import Table

        table = Table(
            title="madl on every worker", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
        )
        table.add_column("worker", no_wrap=True)
        table.add_column("device")
        for heading in ("live", "high water", "committed", "limit", "available"):
            table.add_column(heading, justify="right")
        # Where there are pools, devices without one would hide them.
        in_use = [row for row in self.devices if row.live_nbytes is not None]
        for row in in_use or self.devices:
            worker = row.worker.rpartition("//")[2]
            sizes = (*row[4:], row.available_nbytes)  # those of the pool come last
            cells = ["-" if size is None else format_nbytes(size) for size in sizes]
            table.add_row(worker, row.device, *cells)
        for worker, failure in self.failures.items():
            table.add_row(worker.rpartition("//")[2], escape(failure))
        return table


def report(client: Client) -> Report:
    """Ask every worker for its devices, and for what its pools have of each.

    Returns:
        Figures of this moment; ``rich.print(report(client))`` shows them.
    """
    answers = client.run(_devices_here, on_error="return")
    devices: list[WorkerDevice] = []
    failures: dict[str, str] = {}
    for worker, answer in sorted(answers.items()):
        if isinstance(answer, BaseException):
            failures[worker] = f"{type(answer).__name__}: {answer}"
        else:
            devices += [WorkerDevice(worker, *row) for row in answer]
    return Report(tuple(devices), failures)


def _devices_here() -> list[tuple[Any, ...]]:
    """Return this process's devices, as the rows of a report without the worker."""
    pools = {pool.device: pool for pool in defaults.open_pools()}
    rows = []
    for device in sorted({*registry.devices(), *pools}):
        held = parts_of(pools[device]).backend.backend if device in pools else None
        info = (held or registry.open_device(device)).memory_info()
        figures = _figures(pools[device]).values() if device in pools else ()
        rows.append((device, *info, *figures))
    return rows


async def _metric(worker: Worker) -> dict[str, dict[str, int | None]]:
    """Return what the pools of this process have, for the heartbeat."""
    return {pool.device: _figures(pool) for pool in defaults.open_pools()}


def _figures(pool: Pool) -> dict[str, int | None]:
    # Not by stats(), which visits every block with the pool's lock held: a heartbeat
    # comes each second, and would block the worker's event loop for that long.
    return {
        "live_nbytes": parts_of(pool).shared.live_nbytes,
        "live_high_water_nbytes": parts_of(pool).shared.live_high_water,
        "committed_nbytes": parts_of(pool).growth.budget.committed_nbytes,
        "limit_nbytes": pool.limit_nbytes,
    }


def _serialize(memory: Memory) -> tuple[dict[str, Any], list[Any]]:
    """Return what Dask sends for a memory; of the host's, without a copy."""
    content = memory.memoryview() if is_plain_host(memory) else memory.tobytes()
    return {"nbytes": memory.nbytes, "tag": memory.tag}, [content]


def _deserialize(header: dict[str, Any], frames: list[Any]) -> Memory:
    """Put what arrived into the pool in use here."""
    memory = defaults.allocate(header["nbytes"], tag=header["tag"])
    start = 0
    for frame in frames:  # one, but where Dask has cut it
        part = memoryview(frame)
        memory[start : start + part.nbytes].copy_from(part)
        start += part.nbytes
    return memory


dask_serialize.register(Memory, _serialize)
dask_deserialize.register(Memory, _deserialize)
sizeof.register(Memory, lambda memory: memory.nbytes)
