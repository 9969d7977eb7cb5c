"""A signal handler uses a memory at every moment of a call that uses it, in turn.

Other threads come in at the same moments, and at none besides.
"""

import contextlib
import sys
from collections.abc import Callable

import pytest

from madl import FreedMemoryError, Memory, Pool, Spillable, hotpath
from madl.backends.protocol import Capability
from madl.hotpath import detach
from madl.testing import FakeBackend
from tests.interruptions import comes_between, is_interrupted

SIZE, LARGER, SMALLER = 1000, 5000, 300
FIRST, OTHERS, LATER = b"\1", b"\7", b"\3"


class Scene:
    """A memory, what is seen of it, and what belongs to others."""

    def __init__(self, *, had_views: bool, device: str | FakeBackend = "cpu") -> None:
        self.pool = Pool(device)
        self.memory = self.pool.allocate(SIZE)
        self.memory.copy_from(FIRST * SIZE)
        if not had_views:
            assert detach(self.memory)
        self.views: list[memoryview] = []
        self.slices: list[Memory] = []
        self.others: list[Memory] = []

    def take_others(self) -> None:
        for nbytes in (SIZE, LARGER, SMALLER):
            for _ in range(3):
                other = self.pool.allocate(nbytes)
                other.copy_from(OTHERS * nbytes)
                self.others.append(other)

    def write_to_all(self) -> None:
        """Write to whatever shows the memory; others must not see it."""
        for view in self.views:
            assert OTHERS not in bytes(view)
            view[:] = LATER * len(view)
        for part in self.slices:
            with contextlib.suppress(FreedMemoryError, ValueError):
                part.fill(3)
        for other in self.others:
            assert other.tobytes() == OTHERS * other.nbytes

    def verify(self) -> None:
        """Every block is somebody's, and nobody else's."""
        self.take_others()
        self.write_to_all()
        self.views.clear()
        self.slices.clear()
        self.others.clear()
        if self.memory.is_freed:
            with pytest.raises(FreedMemoryError):
                self.memory.memoryview()
        else:
            self.memory.resize(LARGER)  # nobody looks any more
            self.memory.free()
        assert self.pool.stats().live_nbytes == 0
        self.pool.check()
        self.pool.close()
        assert self.pool.stats().committed_nbytes == 0


def look(scene: Scene) -> None:
    scene.views.append(scene.memory.memoryview())


def look_through_numpy(scene: Scene) -> None:
    scene.views.append(scene.memory.as_array("uint8").data)


def look_at_a_part(scene: Scene) -> None:
    scene.views.append(scene.memory[100:200].memoryview())


def cut(scene: Scene) -> None:
    scene.slices.append(scene.memory[SIZE - 10 :])


def cut_and_drop(scene: Scene) -> None:
    scene.memory[0:8]


def grow(scene: Scene) -> None:
    scene.memory.resize(LARGER)


def shrink(scene: Scene) -> None:
    scene.memory.resize(SMALLER)


def free(scene: Scene) -> None:
    scene.memory.free()
    scene.take_others()


def fill(scene: Scene) -> None:
    scene.memory.fill(1)


def fill_a_part(scene: Scene) -> None:
    scene.memory[:200].fill(1)


def write(scene: Scene) -> None:
    scene.memory.copy_from(FIRST * SMALLER)


def read(scene: Scene) -> None:
    assert OTHERS not in scene.memory.tobytes()


def spill(scene: Scene) -> None:
    Spillable(scene.memory, to="host").spill()


MEANWHILE = [look, cut, grow, shrink, free]


@pytest.mark.parametrize("happening", MEANWHILE)
@pytest.mark.parametrize(
    "act",
    [
        look,
        look_through_numpy,
        look_at_a_part,
        grow,
        shrink,
        fill,
        fill_a_part,
        write,
        read,
    ],
)
@pytest.mark.parametrize("had_views", [True, False])
def test_a_block_is_never_two_peoples(
    had_views: bool,
    act: Callable[[Scene], None],
    happening: Callable[[Scene], None],
) -> None:
    moments = happens_everywhere(lambda: Scene(had_views=had_views), act, happening)

    is_one_step = hotpath.IS_COMPILED and had_views and act is look_through_numpy
    assert moments >= (0 if is_one_step else 1)


@pytest.mark.parametrize("happening", [shrink, free])
@pytest.mark.parametrize("act", [grow, shrink, fill, fill_a_part, write, read])
def test_nor_on_a_device(
    act: Callable[[Scene], None], happening: Callable[[Scene], None]
) -> None:
    def make() -> Scene:
        capabilities = Capability.COPY | Capability.FILL
        return Scene(had_views=False, device=FakeBackend(capabilities=capabilities))

    assert happens_everywhere(make, act, happening)


def happens_everywhere(
    make: Callable[[], Scene],
    act: Callable[[Scene], None],
    happening: Callable[[Scene], None],
) -> int:
    """Return how many moments there were."""
    moments = 0
    while True:
        scene = make()
        moments += 1

        def use(scene: Scene = scene) -> None:
            with contextlib.suppress(FreedMemoryError, ValueError):
                act(scene)

        def happen(scene: Scene = scene) -> None:
            with contextlib.suppress(FreedMemoryError, ValueError):
                happening(scene)

        is_inside = comes_between(use, moments, happen)
        scene.verify()
        if not is_inside:
            return moments - 1


@pytest.mark.parametrize("act", [look, cut_and_drop, grow, shrink, fill, spill])
@pytest.mark.parametrize("had_views", [True, False])
def test_nor_lost_by_an_interruption(
    had_views: bool, act: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What finalizers swallow refers to all that was in hand.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    moments = 0
    is_inside = True
    while is_inside:
        scene = Scene(had_views=had_views)
        moments += 1
        is_inside = is_interrupted(
            lambda scene=scene: act(scene),  # type: ignore[misc]
            moments,
            lambda: None,
        )
        scene.verify()
