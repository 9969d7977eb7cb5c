"""Let the first call of an operation fail, then the second, until none is left.

After each, the pool and what is live are as they were, and all goes on: that is
asked of every operation, on whatever device, whichever way its calls fail.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from madl import Memory, Pool
from madl.backends.protocol import Capability
from madl.errors import BackendCallError, OutOfMemoryError
from madl.testing import Failure, Fault
from tests.faulty import FaultyCalls
from tests.operations import CONTENT, Bench, Operation
from tests.tally import tally

IS_LONG = os.environ.get("TEST_MADL_FAULTS") == "all"
"""Whether every case is run: ``nox -s faults``."""
MOST_CALLS = 500
"""An operation that needs more does not end."""


class Faults(Protocol):
    """What makes calls of a device fail: its backend's, or those of its system."""

    struck: list[str]
    """The calls that failed since it was armed."""

    def arm(self, fault: Fault) -> None:
        """Let calls fail, counted from the next one on."""

    def disarm(self) -> None:
        """Let no call fail any more."""

    def left(self) -> object:
        """Return what was taken and not given back; something false for nothing."""


class BackendFaults(FaultyCalls):
    """Faults of the backend's own calls."""

    def left(self) -> object:
        """Return what was reserved and not released."""
        return self.held


@dataclass(frozen=True)
class Device:
    """How a sweep makes its pools."""

    make: Callable[[], Any]
    """Returns a new backend."""
    unit: int
    """As in ``Bench``."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the pool."""
    make_stream: Callable[[Any], object] = lambda backend: backend.make_stream()
    """Of a backend that has streams."""

    def can_run(self, operation: Operation) -> bool:
        """Return whether an operation needs nothing that the device has not."""
        able = self.make().capabilities
        return not operation.needs or bool(operation.needs & able)


def pattern(number: int, nbytes: int) -> bytes:
    """Return content that no other block has."""
    return bytes([number + 1]) * nbytes


def cases(
    devices: dict[str, Device],
    operations: dict[str, Operation],
    faults: dict[str, Fault],
    *,
    one_in: int,
) -> list[tuple[str, str, str]]:
    """Return names of devices, operations and faults; one in so many of them.

    All of them in a long run. Numbers that have no divisor in common with how many
    faults there are leave none of these out.
    """
    found = [
        (name, operation, fault)
        for name, device in devices.items()
        for operation, fault in itertools.product(operations, faults)
        if device.can_run(operations[operation])
    ]
    return found[:: 1 if IS_LONG else one_in]


class Sweep:
    """One operation on one device, a new pool for each call that fails."""

    def __init__(
        self,
        device: Device,
        operation: Operation,
        make_faults: Callable[[Any], Faults] = BackendFaults,
    ) -> None:
        self.device = device
        self.operation = operation
        self.make_faults = make_faults
        self.faults: Faults
        self.bench: Bench

    def run(self, fault: Fault) -> int:
        """Let each call fail in turn, as ``fault`` says; return how many there are."""
        for number in range(1, MOST_CALLS):
            self.open()
            self.faults.arm(Fault(number, fault.failure, fault.lasts, fault.has_effect))
            is_raised = self.attempt(fault)
            struck = list(self.faults.struck)
            self.faults.disarm()
            self.go_on(is_raised=is_raised)
            self.close()
            if not struck:
                return number - 1
        raise AssertionError(f"an operation of more than {MOST_CALLS} calls")

    def open(self) -> None:
        """Make a pool with blocks live, free, and in bins, and with idle pages."""
        backend = self.device.make()
        self.faults = self.make_faults(backend)
        pool = Pool(backend, **self.device.options)
        unit, kept = self.device.unit, []
        sizes = [unit // 2, 3 * unit, 700, 2 * unit, 5000, 2 * unit, 900, unit]
        blocks = [pool.allocate(nbytes, tag="kept") for nbytes in sizes]
        for number, memory in enumerate(blocks):
            if number % 2:
                memory.free()
            else:
                kept.append(memory)
        streams = []
        if Capability.STREAM_ORDERED in backend.capabilities:
            streams = [self.device.make_stream(backend) for _ in range(2)]
        self.bench = Bench(pool, unit, kept, streams)
        self.bench.made += [pool.allocate(800), pool.allocate(unit)]
        if self.has_content:
            for number, memory in enumerate(kept):
                memory.copy_from(pattern(number, memory.nbytes))

    @property
    def has_content(self) -> bool:
        """Whether what is in a block can be looked at."""
        return bool(self.bench.pool.capabilities & CONTENT)

    def attempt(self, fault: Fault) -> bool:
        """Run the operation with a fault armed; return whether it raised the right."""
        before = self.state()
        tally.operations += 1
        try:
            self.operation.run(self.bench)
        except (BackendCallError, OutOfMemoryError, KeyboardInterrupt) as error:
            self.faults.disarm()
            self.check_error(error, fault)
        else:
            return False
        # By now nobody holds the error, whose traceback would hold what was made.
        assert self.state() == before, self.faults.struck
        return True

    def check_error(self, error: BaseException, fault: Fault) -> None:
        """Fail unless an error is the right one for the way in which calls fail."""
        kinds: dict[Failure, tuple[type[BaseException], ...]] = {
            Failure.BROKEN: (BackendCallError,),
            Failure.INTERRUPTED: (KeyboardInterrupt,),
            Failure.REFUSED: (OutOfMemoryError, BackendCallError),
        }
        struck = self.faults.struck
        assert struck, f"raised without a fault: {error!r}"
        assert isinstance(error, kinds[fault.failure]), (error, struck)
        is_device = fault.failure is not Failure.INTERRUPTED
        assert not (self.operation.never_raises and is_device), (error, struck)

    def state(self) -> tuple[object, ...]:
        """Return all that an operation which fails must leave as it was."""
        pool = self.bench.pool
        made: Sequence[Any] = self.bench.made
        stats = pool.stats()
        handles = [one for one in (*self.bench.kept, *made) if isinstance(one, Memory)]
        blocks = Counter(
            (block.nbytes, block.tag)
            for arena in pool.snapshot().arenas
            for block in arena.blocks
            if block.state == "live"
        )
        tags = {tag: usage.live_nbytes for tag, usage in stats.tags.items()}
        return (
            stats.live_nbytes,
            stats.padding_nbytes,
            stats.allocation_count - stats.free_count,
            tuple(sorted(blocks.items(), key=repr)),
            tuple(sorted((tag, used) for tag, used in tags.items() if used)),
            tuple(one.is_freed for one in handles),
        )

    def go_on(self, *, is_raised: bool) -> None:
        """Verify the pool, then do the same again and something else."""
        pool, bench = self.bench.pool, self.bench
        pool.check()
        if is_raised and not pool.is_closed:
            tally.operations += 1
            if not bench.made:
                bench.made += [pool.allocate(800)]
            self.operation.run(bench)
        if not pool.is_closed:
            tally.operations += 3
            self.use(pool.allocate(2 * bench.unit))
            pool.trim()
            self.use(pool.allocate(2 * bench.unit))
        pool.check()

    def use(self, memory: Memory) -> None:
        """Write to all of a block, and free it: what is not there ends the process."""
        if self.has_content:
            memory.copy_from(bytes(memory.nbytes))
        memory.free()

    def close(self) -> None:
        """Give all back; nothing is left on the device."""
        bench = self.bench
        if self.has_content:
            for number, memory in enumerate(bench.kept):
                assert memory.tobytes() == pattern(number, memory.nbytes)
        bench.made.clear()
        for other in bench.pools:
            other.close()  # again: what failed may be left to it
        while bench.kept:
            bench.kept.pop().free()
        assert bench.pool.close().live_nbytes == 0
        assert not self.faults.left(), self.faults.struck
