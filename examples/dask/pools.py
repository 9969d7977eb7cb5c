"""A pool on every worker of a Dask cluster, and a table of all of them.

    python examples/dask/pools.py

Tasks take memory by ``madl.allocate`` and ``madl.empty`` and need not know of the
plugin; a ``Memory`` is sent where it is needed.
"""

import rich
from distributed import Client, LocalCluster

import madl
from madl.integrations.dask import PoolPlugin, report


def load(number: int) -> madl.Memory:
    """Fill a block of the worker's pool."""
    memory = madl.allocate("4 MiB", tag="parts")
    memory.as_array("float32")[:] = number
    return memory


def mean(part: madl.Memory) -> float:
    """Read a block, which may have come from another worker."""
    return float(part.as_array("float32").mean())


def main() -> None:
    """Load ten parts, sum their means, and show who has what."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(PoolPlugin(limit="256 MiB"))
        parts = client.map(load, range(10))
        print("sum of means:", sum(client.gather(client.map(mean, parts))))
        rich.print(report(client))


if __name__ == "__main__":
    main()
