"""Conformance of a pool over the backend: a seeded random walk, every byte checked."""

import random
from typing import Any

from madl.backends.protocol import Backend, Reservation
from madl.errors import OutOfMemoryError
from madl.hotpath import Memory
from madl.memory.place import locate
from madl.pool import Pool
from madl.pool.arena import Arena
from madl.sizes import ADDRESS_SPACE_NBYTES, format_nbytes
from madl.testing.case import BackendCase
from madl.testing.workbench import Workbench, pattern

_STEPS = 400
_MOST_NBYTES = 32 << 20
_LEAST_NBYTES = 1 << 20


class PoolTests(BackendCase):
    """What a pool makes of the backend."""

    def test_a_pool_keeps_every_byte_and_gives_all_back(self) -> None:
        with self.workbench() as bench:
            ledger = _Ledger(bench.backend)
            limit = min(_MOST_NBYTES, bench.available_nbytes() // 2)
            limit = max(limit, _LEAST_NBYTES, 16 * bench.granule)
            with Pool(ledger, limit=limit) as pool:
                walk = _Walk(pool, bench, limit)
                for number in range(1, _STEPS + 1):
                    walk.step()
                    if number % 50 == 0:
                        pool.check()
                    if number % 100 == 0:
                        pool.trim()
                walk.free_all()
                pool.check()
            held = sum(one.nbytes for one in ledger.held)
            assert not ledger.held, (
                f"{len(ledger.held)} reservations of {format_nbytes(held)} were not "
                "released by a pool that is closed and empty"
            )

    def test_a_pool_survives_running_out_of_memory(self) -> None:
        with self.workbench() as bench:
            ledger = _Ledger(bench.backend)
            total = bench.backend.memory_info().total_nbytes
            with Pool(ledger) as pool:
                kept = pool.allocate(bench.unit)
                before = pool.stats()
                refusal = _run_out(pool, total)
                assert refusal, "eight times the device's memory was granted"
                assert refusal.device == bench.backend.device, (
                    f"the error names device {refusal.device!r}, the backend is "
                    f"{bench.backend.device!r}"
                )
                after = pool.stats()
                assert before.live_nbytes == after.live_nbytes, (
                    f"live bytes were {before.live_nbytes}, and {after.live_nbytes} "
                    "after an allocation that failed"
                )
                pool.allocate(bench.unit).free()
                kept.free()
                pool.check()
            assert not ledger.held, f"not released: {ledger.held}"


def _run_out(pool: Pool, total: int) -> OutOfMemoryError | None:
    """Ask for eight times a device's memory, in one piece if there are addresses."""
    nbytes = min(max(1 << 55, 8 * total), ADDRESS_SPACE_NBYTES // 8)
    granted = []
    try:
        for _ in range(1 + 8 * total // nbytes):
            granted.append(pool.allocate(nbytes))
    except OutOfMemoryError as error:
        return error
    finally:
        for memory in granted:
            memory.free()
    return None


class _Ledger:
    """Passes calls on, and knows what was taken and not given back."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.held: list[Reservation] = []
        self.device = backend.device
        self.capabilities = backend.capabilities
        self.granularity = backend.granularity
        self.alignment = backend.alignment
        self.memory_info = backend.memory_info

    def reserve(self, nbytes: int) -> Reservation:
        reservation = self._backend.reserve(nbytes)
        self.held.append(reservation)
        return reservation

    def release(self, reservation: Reservation) -> None:
        self._backend.release(reservation)
        self.held.remove(reservation)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # any optional method
        return getattr(self._backend, name)


class _Walk:
    """Allocates and frees at random; no two live blocks hold the same bytes."""

    def __init__(self, pool: Pool, bench: Workbench, limit_nbytes: int) -> None:
        self._pool = pool
        self._bench = bench
        self._largest = limit_nbytes // 8
        self._random = random.Random(20)
        self._live: list[tuple[Memory, int]] = []
        self._seed = 0

    def step(self) -> None:
        """Allocate and write, or verify and free."""
        if self._live and self._random.random() < 0.45:
            self._free(self._random.randrange(len(self._live)))
            return
        nbytes = int(self._largest ** self._random.uniform(0.3, 1))
        alignment = self._random.choice((None, None, 4096))
        try:
            memory = self._pool.allocate(nbytes, alignment=alignment)
        except OutOfMemoryError:
            while len(self._live) > 2:
                self._free(self._random.randrange(len(self._live)))
            return
        self._seed += 1
        self._live.append((memory, self._seed))
        if self._bench.has_content and nbytes:
            self._bench.write(*_place(memory), _content(memory, self._seed))

    def free_all(self) -> None:
        """Verify and free what is live."""
        while self._live:
            self._free(-1)

    def _free(self, index: int) -> None:
        memory, seed = self._live.pop(index)
        if self._bench.has_content and memory.nbytes:
            what = f"block {seed} of {memory.nbytes} bytes, before its free"
            self._bench.assert_holds(*_place(memory), _content(memory, seed), what)
        memory.free()


def _place(memory: Memory) -> tuple[Reservation, int]:
    arena, offset = locate(memory, "the walk")
    assert isinstance(arena, Arena)
    return arena.reservation, offset + arena.front_nbytes


def _content(memory: Memory, seed: int) -> bytes:
    piece = pattern(4096, seed)
    return (piece * (memory.nbytes // len(piece) + 1))[: memory.nbytes]
