"""Whatever was allocated before: every report adds up, and so does what is shared."""

import contextlib
import random

import pytest

import madl
from madl import Memory, OutOfMemoryError, Pool
from madl.backends.sim import SimBackend
from madl.pool.allocate import parts_of
from tests.shortages import check_sums

KIB = 1 << 10
STEPS = 3000
TAGS = ("model", "model/encoder", "model/decoder", "data", None)


class Walk:
    """Allocates and frees at random in two pools of one device."""

    def __init__(self, seed: int, *, commits: bool) -> None:
        self.random = random.Random(seed)
        self.device = SimBackend(total_nbytes=4096 * KIB, commits=commits)
        madl.limit_device(self.device, 3000 * KIB)
        self.pools = [
            Pool(self.device, limit=2000 * KIB),
            Pool(self.device, **({"page_size": 16 * KIB} if commits else {})),  # type: ignore[arg-type]  # options of a pool
        ]
        self.live: list[Memory] = []
        self.refusals = 0

    def step(self) -> None:
        """Allocate, free or trim; a request that fails has to explain itself."""
        choice = self.random.random()
        if choice < 0.02:
            self.random.choice(self.pools).trim()
        elif self.live and choice < 0.48:
            self.live.pop(self.random.randrange(len(self.live)))
        else:
            self.allocate()

    def allocate(self) -> None:
        """Allocate under a tag, bounded now and then."""
        tag = self.random.choice(TAGS)
        nbytes = int(2 ** self.random.uniform(6, 21))
        bound = madl.tag("model", limit=500 * KIB)
        with bound if self.random.random() < 0.3 else contextlib.nullcontext():
            try:
                self.live.append(
                    self.random.choice(self.pools).allocate(nbytes, tag=tag)
                )
            except OutOfMemoryError as error:
                self.refusals += 1
                check_sums(error.report)

    def check(self) -> None:
        """Verify what the pools share against what each of them has."""
        stats = [pool.stats() for pool in self.pools]
        budget = parts_of(self.pools[0]).growth.budget.device
        committed = sum(one.committed_nbytes for one in stats)
        assert budget.committed_nbytes == committed == self.device.committed_nbytes
        assert committed <= 3000 * KIB
        for name in filter(None, TAGS):
            assert budget.tag(name).live_nbytes == sum(
                memory.nbytes
                for memory in self.live
                if memory.tag and f"{memory.tag}/".startswith(f"{name}/")
            )
        for pool in self.pools:
            pool.check()


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_every_report_of_a_long_use_adds_up(seed: int, commits: bool) -> None:
    walk = Walk(seed, commits=commits)

    for number in range(STEPS):
        walk.step()
        if number % 100 == 0:
            walk.check()

    assert walk.refusals > 100
    walk.live.clear()
    walk.check()
