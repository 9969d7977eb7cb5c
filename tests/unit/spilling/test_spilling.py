"""``Spillable`` gives its memory up when a pool needs the room, and gets it back."""

import copy
import gc
import os
import pickle
import random
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from madl import FreedMemoryError, Memory, OutOfMemoryError, Pool, Spillable
from madl.backends.protocol import Capability
from madl.spilling.copies import Copy, FileCopy, HostCopy
from madl.testing import FakeBackend
from tests.disk import no_file_larger_than

KIB = 1 << 10
LIMIT = 256 * KIB


@pytest.fixture(params=["cpu", "device"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Return a pool of the host, and one of a device that only copies reach."""
    device = request.param
    if device == "device":
        capabilities = Capability.COMMIT | Capability.COPY
        device = FakeBackend(capabilities=capabilities, total_nbytes=1 << 20)
    with Pool(device, limit=LIMIT) as pool:
        yield pool
        pool.check()


def filled(pool: Pool, byte: int, nbytes: int = 100 * KIB) -> Memory:
    memory = pool.allocate(nbytes, tag="spilled")
    memory.copy_from(bytes([byte]) * nbytes)
    return memory


def content(spillable: Spillable) -> set[int]:
    with spillable as memory:
        return set(memory.tobytes())


@pytest.mark.parametrize("to", [None, "host", "file"])
def test_what_was_spilled_comes_back_as_it_was(
    pool: Pool, to: Literal["host", "file"] | None
) -> None:
    spillable = Spillable(filled(pool, 7), to=to)

    gave_back = spillable.spill()

    assert (gave_back, spillable.is_spilled) == (100 * KIB, True)
    assert pool.stats().live_nbytes == 0
    with spillable as memory:
        assert set(memory.tobytes()) == {7}
        assert (memory.tag, memory.nbytes) == ("spilled", 100 * KIB)
        assert not spillable.is_spilled
    assert pool.stats().live_nbytes == 100 * KIB


def test_a_pool_without_room_spills_what_was_used_longest_ago(pool: Pool) -> None:
    first, second = (Spillable(filled(pool, byte)) for byte in (1, 2))
    content(first)

    other = pool.allocate(100 * KIB)

    assert [first.is_spilled, second.is_spilled] == [False, True]
    other.free()
    assert [content(first), content(second)] == [{1}, {2}]


def test_no_more_is_spilled_than_is_needed(pool: Pool) -> None:
    spillables = [Spillable(filled(pool, n, 50 * KIB)) for n in range(5)]

    pool.allocate(60 * KIB).free()

    assert sum(one.is_spilled for one in spillables) == 2


def test_more_is_spilled_where_what_is_free_is_in_pieces() -> None:
    backend = FakeBackend(
        capabilities=Capability.COMMIT | Capability.COPY, total_nbytes=LIMIT
    )
    with Pool(backend, limit=LIMIT, page_size=LIMIT) as pool:
        spillables = [Spillable(filled(pool, n, 32 * KIB)) for n in range(8)]
        for n in (1, 3, 5, 7, 0, 2, 4, 6):
            content(spillables[n])

        memory = pool.allocate(96 * KIB)

        assert memory.nbytes == 96 * KIB
        memory.free()
        assert [content(one) for one in spillables] == [{n} for n in range(8)]


def test_what_is_in_use_or_looked_at_stays(pool: Pool) -> None:
    spillable = Spillable(filled(pool, 7))

    with spillable as memory:
        assert spillable.spill() == 0
        part = memory[:10]
        with pytest.raises(OutOfMemoryError):
            pool.allocate(200 * KIB)
    assert spillable.spill() == 0
    del part, memory
    assert spillable.spill() == 100 * KIB
    assert spillable.spill() == 0


def test_an_array_of_it_keeps_it_where_it_is() -> None:
    with Pool("cpu", limit=LIMIT) as pool:
        spillable = Spillable(filled(pool, 7))
        with spillable as memory:
            array = memory.as_array()
        del memory

        assert spillable.spill() == 0
        del array
        assert spillable.spill() == 100 * KIB


def test_a_higher_priority_is_asked_first(pool: Pool) -> None:
    late = Spillable(filled(pool, 1), priority=5)
    early = Spillable(filled(pool, 2), priority=-5)

    pool.allocate(100 * KIB)

    assert (early.is_spilled, late.is_spilled) == (True, False)


def test_without_room_it_stays_spilled(pool: Pool) -> None:
    spillable = Spillable(filled(pool, 7))
    spillable.spill()
    held = pool.allocate(LIMIT)

    with pytest.raises(OutOfMemoryError), spillable:
        pass

    assert spillable.is_spilled
    held.free()
    assert content(spillable) == {7}


@pytest.mark.parametrize("kind", ["missing", "full"])
@pytest.mark.skipif(sys.platform == "win32", reason="needs a bound on file sizes")
def test_a_file_that_cannot_be_written_leaves_the_content(
    pool: Pool, tmp_path: Path, kind: str
) -> None:
    directory = tmp_path / "missing" if kind == "missing" else tmp_path
    spillable = Spillable(filled(pool, 7), directory=directory)

    with no_file_larger_than(4096) if kind == "full" else nullcontext():
        with pytest.raises(OSError):  # noqa: PT011  # which one is the system's
            spillable.spill()
        with pytest.raises(OutOfMemoryError) as caught:
            pool.allocate(LIMIT)

    assert isinstance(caught.value.__context__, OSError)
    assert not spillable.is_spilled
    assert content(spillable) == {7}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such mode")
def test_the_file_is_nobody_elses(pool: Pool, tmp_path: Path) -> None:
    copy = FileCopy(filled(pool, 7), str(tmp_path))
    file = copy._file

    status = Path(f"/proc/self/fd/{file.fileno()}").stat()

    assert stat.S_IMODE(status.st_mode) == 0o600
    assert list(tmp_path.iterdir()) == []
    del copy
    assert file.closed


def test_a_file_that_was_cut_is_an_error_and_nothing_is_lost(
    pool: Pool, tmp_path: Path
) -> None:
    memory = filled(pool, 7)
    spillable = Spillable(memory, directory=tmp_path)
    spillable.spill()
    copy = spillable._copy
    assert isinstance(copy, FileCopy)
    copy._file.truncate(10)

    with pytest.raises(OSError, match="ends at byte 10, before"), spillable:
        pass

    assert spillable.is_spilled
    assert pool.stats().live_nbytes == 0


@pytest.mark.parametrize("is_spilled", [True, False])
def test_closing_frees_what_there_is(pool: Pool, is_spilled: bool) -> None:
    spillable = Spillable(filled(pool, 7))
    if is_spilled:
        spillable.spill()

    spillable.close()
    spillable.close()

    assert pool.stats().live_nbytes == 0
    assert spillable.spill() == 0
    with pytest.raises(ValueError, match="was closed"), spillable:
        pass


def test_what_is_in_use_cannot_be_closed(pool: Pool) -> None:
    spillable = Spillable(filled(pool, 7))

    with spillable, pytest.raises(ValueError, match="is in use"):
        spillable.close()

    assert content(spillable) == {7}


def test_dropping_it_frees_the_memory_and_the_pool(pool: Pool) -> None:
    spillable = Spillable(filled(pool, 7))
    del spillable
    gc.collect()

    assert pool.stats().live_nbytes == 0
    assert pool.allocate(LIMIT).nbytes == LIMIT


def test_the_old_handle_is_dead_once_it_was_spilled(pool: Pool) -> None:
    memory = filled(pool, 7)
    spillable = Spillable(memory)

    spillable.spill()

    with pytest.raises(FreedMemoryError):
        memory.tobytes()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"to": "tape"}, "to must be one of host, file, got 'tape'"),
        ({"to": "host", "directory": "/"}, "directory is for to='file', got '/'"),
    ],
)
def test_other_places_are_refused(
    pool: Pool, options: dict[str, str], text: str
) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        Spillable(filled(pool, 7), **options)  # type: ignore[arg-type]  # texts all


def test_only_whole_live_memory_can_be_spilled(pool: Pool) -> None:
    memory = filled(pool, 7)
    with pytest.raises(ValueError, match="a whole memory can be spilled"):
        Spillable(memory[:10])
    memory.free()
    with pytest.raises(ValueError, match="a whole memory can be spilled"):
        Spillable(memory)


def test_threads_find_their_content_whatever_is_spilled(pool: Pool) -> None:
    spillables = [Spillable(filled(pool, n, 20 * KIB)) for n in range(16)]
    wrong: list[object] = []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        try:
            for _ in range(60):
                n = choose.randrange(16)
                if content(spillables[n]) != {n}:
                    wrong.append(n)
        except BaseException as error:  # a failure in a thread must not be lost
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    pool.check()


class Robbed(Spillable):
    """Another thread takes the room as soon as it is there, so many times."""

    thieves: ClassVar[list[Spillable]] = []
    most_thefts = 0

    def spill_if_unused(self) -> int:
        freed = super().spill_if_unused()
        if freed and Robbed.most_thefts:
            Robbed.most_thefts -= 1
            thief = next(one for one in self.thieves if one.is_spilled)
            thread = threading.Thread(target=content, args=(thief,))
            thread.start()
            thread.join()
        return freed


@pytest.fixture
def robbed(pool: Pool) -> Iterator[list[Spillable]]:
    """Return four memories, of which two have room."""
    Robbed.thieves = [Robbed(filled(pool, byte)) for byte in range(4)]
    assert [one.is_spilled for one in Robbed.thieves] == [True, True, False, False]
    yield Robbed.thieves
    Robbed.thieves = []


@pytest.mark.usefixtures("robbed")
def test_room_that_another_thread_takes_is_made_again(pool: Pool) -> None:
    Robbed.most_thefts = 10

    memory = pool.allocate(100 * KIB)

    assert memory.nbytes == 100 * KIB
    assert Robbed.most_thefts == 0


def test_what_never_is_the_quickest_fails_in_the_end(
    pool: Pool, robbed: list[Spillable]
) -> None:
    Robbed.most_thefts = sys.maxsize

    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(100 * KIB)

    Robbed.most_thefts = 0
    assert [content(one) for one in robbed] == [{0}, {1}, {2}, {3}]
    assert caught.value.report.tried[-1] == ("garbage collection", 0)


class Moving(Spillable):
    """Is in use each time that somebody looks, so many times."""

    most_looks = 10

    def spill_if_unused(self) -> int:
        if not self.most_looks:
            return super().spill_if_unused()
        self.most_looks -= 1
        with self:
            return super().spill_if_unused()


def test_users_that_move_on_while_they_are_looked_at_leave_room(pool: Pool) -> None:
    moving = [Moving(filled(pool, byte)) for byte in range(2)]

    memory = pool.allocate(100 * KIB)

    assert memory.nbytes == 100 * KIB
    assert [one.is_spilled for one in moving].count(True) == 1


def test_restoring_one_spills_another(pool: Pool) -> None:
    first, second, third = (Spillable(filled(pool, byte)) for byte in (1, 2, 3))
    assert first.is_spilled

    assert content(first) == {1}
    assert [second.is_spilled, third.is_spilled] == [True, False]
    assert [content(one) for one in (first, second, third)] == [{1}, {2}, {3}]


def test_the_error_of_a_file_keeps_nothing_from_being_spilled_later(
    tmp_path: Path,
) -> None:
    with Pool("cpu", limit=LIMIT) as pool:
        spillable = Spillable(filled(pool, 7, 200 * KIB), directory=tmp_path)

        with no_file_larger_than(KIB), pytest.raises(OutOfMemoryError) as failed:
            pool.allocate(200 * KIB)

        assert isinstance(failed.value.__context__, OSError)
        assert spillable.spill() > 0
        assert content(spillable) == {7}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_finds_its_content_whatever_other_threads_did(tmp_path: Path) -> None:
    with Pool("cpu", limit=LIMIT) as pool:
        spillables = [Spillable(filled(pool, n), directory=tmp_path) for n in range(4)]
        stop = threading.Event()

        def use() -> None:
            while not stop.is_set():
                for spillable in spillables:
                    content(spillable)

        thread = threading.Thread(target=use)
        thread.start()
        try:
            statuses = [in_child(lambda: contents(spillables)) for _ in range(20)]
        finally:
            stop.set()
            thread.join()

        assert statuses == [0] * 20


def contents(spillables: list[Spillable]) -> None:
    for byte, spillable in enumerate(spillables):
        assert content(spillable) == {byte}


def in_child(call: Callable[[], None]) -> int:
    """Return 0 if all went well in a forked child within ten seconds."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    signal.alarm(10)
    try:
        call()
    except BaseException:  # whatever it is, this process must end here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def spilled_secret(
    to: Literal["host", "file"], directory: Path | None = None
) -> tuple[Spillable, Copy]:
    """Return what was spilled from a pool that wipes, and its copy."""
    memory = Pool("cpu", zero="free").allocate(100 * KIB)
    memory.fill(7)
    spillable = Spillable(memory, to=to, directory=directory)
    spillable.spill()
    copy = spillable._copy
    assert copy is not None
    return spillable, copy


@pytest.mark.parametrize("how", ["closed", "restored", "dropped"])
@pytest.mark.parametrize("to", ["host", "file"])
def test_the_copy_is_wiped_where_the_pool_wipes(
    to: Literal["host", "file"], how: str
) -> None:
    spillable, copy = spilled_secret(to)
    read: Callable[[], bytes]
    if isinstance(copy, HostCopy):
        kept = copy._content
        read = lambda: bytes(kept)  # noqa: E731  # one of two
    else:
        assert isinstance(copy, FileCopy)
        file = os.dup(copy._file.fileno())
        read = lambda: pread_all(file)  # noqa: E731  # one of two
    del copy
    before = set(read())

    if how == "closed":
        spillable.close()
    elif how == "restored":
        with spillable as memory:
            assert set(memory.tobytes()) == {7}
    else:
        del spillable

    assert (before, set(read()), len(read())) == ({7}, {0}, 100 * KIB)


def pread_all(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    return os.read(file, 1 << 20)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_child_that_forgets_a_copy_leaves_the_file_as_it_is() -> None:
    spillable, copy = spilled_secret("file")

    child = os.fork()
    if child == 0:
        try:
            copy.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert content(spillable) == {7}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_child_wipes_its_own_shared_memory_only(is_closed: bool) -> None:
    pool = Pool("shared", zero="free")
    memory = filled(pool, 7)
    if is_closed:
        pool.close()

    child = os.fork()
    if child == 0:
        try:
            memory.free()
            pool.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert set(memory.tobytes()) == {7}


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_is_neither_pickled_nor_copied(copied: Callable[[object], object]) -> None:
    spillable = Spillable(Pool("cpu").allocate(100))

    with pytest.raises(TypeError) as caught:
        copied(spillable)

    assert str(caught.value) == (
        "<madl.Spillable of 100 bytes on cpu> cannot be pickled or copied: two of them "
        "would free one memory; pass mem.tobytes() for its content, within its with "
        "block"
    )
