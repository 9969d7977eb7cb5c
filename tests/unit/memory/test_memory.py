"""A handle: what it says of its memory, and what it refuses once that is freed."""

import copy
import pickle
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import madl
from madl import FreedMemoryError, Memory, MissingCapabilityError, Pool

KIB, MIB = 1 << 10, 1 << 20

USES: dict[str, Callable[[Memory], object]] = {
    "address": lambda memory: memory.address,
    "native": lambda memory: memory.native,
    "capacity": lambda memory: memory.capacity,
    "tag": lambda memory: memory.tag,
    "stream": lambda memory: memory.stream,
    "array interface": lambda memory: memory.__array_interface__,
    "np.asarray": lambda memory: np.asarray(memory),
    "as_array": lambda memory: memory.as_array(),
    "memoryview": lambda memory: memory.memoryview(),
    "tobytes": lambda memory: memory.tobytes(),
    "slice": lambda memory: memory[0:1],
    "copy_from": lambda memory: memory.copy_from(b"a"),
    "copy_to": lambda memory: memory.copy_to(bytearray(8)),
    "copy into": lambda memory: madl.copy(memory, b"a"),
    "copy out of": lambda memory: madl.copy(bytearray(8), memory),
    "fill": lambda memory: memory.fill(0),
    "resize": lambda memory: memory.resize(16),
    "record_stream": lambda memory: memory.record_stream(1),
    "free": lambda memory: memory.free(),
}
WORDS = {
    "address": "address",
    "native": "native",
    "capacity": "capacity",
    "tag": "tag",
    "stream": "stream",
    "slice": "a slice",
    "fill": "fill()",
    "resize": "resize()",
    "record_stream": "record_stream()",
    "free": "free()",
}


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool("cpu") as pool:
        yield pool
        pool.check()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("nbytes", [8, 0])
def test_no_method_works_on_freed_memory(pool: Pool, use: str, nbytes: int) -> None:
    memory = pool.allocate(nbytes)
    memory.free()

    with pytest.raises(FreedMemoryError) as caught:
        USES[use](memory)

    assert str(caught.value) == (
        f"cpu: {WORDS.get(use, 'a view')} on memory of {nbytes} B that was freed. "
        "Try: keep the Memory until its last use, or copy what is needed before free()"
    )


@pytest.mark.parametrize("use", [use for use in USES if use != "free"])
def test_no_method_works_on_a_slice_of_freed_memory(pool: Pool, use: str) -> None:
    memory = pool.allocate(8)
    part = memory[2:6]
    memory.free()

    with pytest.raises(FreedMemoryError):
        USES[use](part)


def test_freed_memory_still_says_what_it_was(pool: Pool) -> None:
    memory = pool.allocate(8)
    memory.free()

    assert (memory.nbytes, len(memory), memory.device, memory.pool) == (
        8,
        8,
        "cpu",
        pool,
    )
    assert memory.is_freed
    assert repr(memory) == "<madl.Memory on cpu: freed>"


def test_a_handle_that_was_freed_may_leave_its_with_block(pool: Pool) -> None:
    with pool.allocate(8) as memory:
        memory.free()

    assert memory.is_freed


def test_a_live_handle_shows_its_size(pool: Pool) -> None:
    memory = pool.allocate(100)

    assert repr(memory) == "<madl.Memory on cpu: 100 bytes>"
    assert not memory.is_freed


@pytest.mark.parametrize("asked", [1, 511, 512, 513, 100_000])
def test_what_is_given_is_what_was_asked_rounded_up(pool: Pool, asked: int) -> None:
    memory = pool.allocate(asked)

    assert (memory.nbytes, memory.capacity) == (asked, -(-asked // 512) * 512)
    assert pool.stats().live_nbytes == asked
    assert pool.stats().padding_nbytes == memory.capacity - asked


@pytest.mark.parametrize("power", range(22))
def test_every_alignment_up_to_2_mib_is_met(pool: Pool, power: int) -> None:
    held = [pool.allocate(777) for _ in range(3)]

    held += [pool.allocate(777, alignment=1 << power) for _ in range(3)]

    assert [memory.address % (1 << power) for memory in held[3:]] == [0, 0, 0]


@pytest.mark.parametrize("alignment", [None, 0])
def test_the_default_alignment_is_512(pool: Pool, alignment: int | None) -> None:
    held = [pool.allocate(size, alignment=alignment) for size in (1, 513, 100)]

    assert [memory.address % 512 for memory in held] == [0, 0, 0]


@pytest.mark.parametrize(
    ("alignment", "error", "text"),
    [
        (3, ValueError, "alignment must be a power of two, got 3"),
        (-8, ValueError, "alignment must not be negative, got -8"),
        (
            2.0,
            TypeError,
            "alignment must be an int or a text such as '64 MiB', got 2.0 (float)",
        ),
    ],
)
def test_other_alignments_are_refused(
    pool: Pool, alignment: int, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        pool.allocate(8, alignment=alignment)

    assert str(caught.value) == text
    assert pool.stats().allocation_count == 0


def test_zero_bytes_have_no_address_and_no_content(pool: Pool) -> None:
    memory = pool.allocate(0)

    assert (memory.nbytes, memory.capacity, memory.address) == (0, 0, 0)
    assert (memory.tobytes(), memory.as_array().shape) == (b"", (0,))
    assert pool.stats().backend_calls == 0


def test_zero_bytes_can_be_filled_copied_cut_and_resized(pool: Pool) -> None:
    memory = pool.allocate(0)

    memory.fill(1)
    memory.copy_from(b"")
    assert memory[0:0].tobytes() == b""
    memory.resize(4)
    memory.fill(7)

    assert memory.tobytes() == b"\x07" * 4


def test_an_address_needs_a_device_that_has_some() -> None:
    memory = Pool("sim").allocate(8)

    with pytest.raises(MissingCapabilityError) as caught:
        memory.address  # noqa: B018  # the property raises

    assert str(caught.value) == ("sim has no addresses. Try: another device")


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ("np.asarray", "a view"),
        ("memoryview", "a view"),
        ("tobytes", "a view"),
        ("copy_from", "a view"),
        ("fill", "fill()"),
        ("resize", "resize()"),
    ],
)
def test_content_needs_a_device_that_the_cpu_can_reach(use: str, words: str) -> None:
    pool = Pool("sim")
    memory = pool.allocate(8)

    with pytest.raises(MissingCapabilityError) as caught:
        USES[use](memory)

    assert str(caught.value) == (
        f"sim has no host access, which {words} needs. "
        "Try: a device that the CPU can reach, such as 'cpu'"
    )
    assert (memory.nbytes, pool.stats().live_nbytes) == (8, 8)


def test_a_device_without_streams_records_none(pool: Pool) -> None:
    memory = pool.allocate(8)

    with pytest.raises(MissingCapabilityError) as caught:
        memory.record_stream(7)

    assert memory.stream is None
    assert str(caught.value) == ("cpu has no streams. Try: leave out record_stream(7)")


@pytest.mark.parametrize(
    "attempt",
    [pickle.dumps, copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_a_handle_is_neither_pickled_nor_copied(
    pool: Pool, attempt: Callable[[object], object]
) -> None:
    memory = pool.allocate(8)

    with pytest.raises(TypeError) as caught:
        attempt(memory)

    assert str(caught.value) == (
        "a Memory of cpu cannot be pickled or copied; pass mem.tobytes() for its "
        "content, or allocate it with device='shared' and pass madl.share(mem)"
    )


@pytest.mark.parametrize("size", [5, 4096, 5 * MIB])
def test_resize_keeps_the_content(pool: Pool, size: int) -> None:
    memory = pool.allocate(4096)
    content = np.random.default_rng(1).bytes(4096)
    memory.copy_from(content)

    memory.resize(size)

    assert memory.nbytes == size
    assert memory.tobytes()[:4096] == content[:size]
    assert pool.stats().live_nbytes == size


def test_resize_takes_a_text(pool: Pool) -> None:
    memory = pool.allocate(8)

    memory.resize("1 KiB")

    assert memory.nbytes == KIB


def test_resize_keeps_the_tag(pool: Pool) -> None:
    memory = pool.allocate(1000, tag="weights")

    memory.resize(2000)

    assert memory.tag == "weights"
    assert pool.stats().tags["weights"].live_nbytes == 2000


def view_of(memory: Memory) -> object:
    return memory.memoryview()


def array_of(memory: Memory) -> object:
    return np.asarray(memory)[2:]


def slice_of(memory: Memory) -> object:
    return memory[1:3]


@pytest.mark.parametrize("look", [view_of, array_of, slice_of])
def test_resize_waits_until_nobody_looks(
    pool: Pool, look: Callable[[Memory], object]
) -> None:
    memory = pool.allocate(8)
    other = look(memory)

    with pytest.raises(ValueError, match=r"live; drop them first$") as caught:
        memory.resize(4)

    assert str(caught.value) == (
        "cpu: memory of 8 bytes cannot be resized while arrays, memoryviews or slices "
        "of it live; drop them first"
    )
    assert (memory.nbytes, pool.stats().live_nbytes) == (8, 8)
    del other, caught
    memory.resize(4)
    assert memory.nbytes == 4


def test_a_slice_of_other_memory_does_not_hinder_resize(pool: Pool) -> None:
    memory, other = pool.allocate(8), pool.allocate(8)
    part = other[0:4]

    memory.resize(16)

    assert (memory.nbytes, part.nbytes) == (16, 4)


def test_resize_of_a_slice_is_refused(pool: Pool) -> None:
    part = pool.allocate(8)[2:6]

    with pytest.raises(ValueError, match=r"^cpu") as caught:
        part.resize(8)

    assert str(caught.value) == (
        "cpu: a slice of 4 bytes cannot be resized; cut another, or resize the memory "
        "that it was cut from"
    )


def test_a_resize_that_fails_changes_nothing() -> None:
    with Pool("cpu", limit="1 MiB") as pool:
        memory = pool.allocate(600 * KIB)
        memory.fill(3)
        address = memory.address

        with pytest.raises(MemoryError):
            memory.resize(700 * KIB)

        assert (memory.address, memory.nbytes) == (address, 600 * KIB)
        assert memory.tobytes() == b"\x03" * (600 * KIB)
        assert pool.stats().live_nbytes == 600 * KIB


def test_a_slice_is_a_part_of_its_memory(pool: Pool) -> None:
    memory = pool.allocate(10, tag="a")
    memory.copy_from(b"0123456789")

    part = memory[2:8][1:3]

    assert part.tobytes() == b"34"
    assert part.address == memory.address + 3
    assert (part.nbytes, part.capacity, part.tag) == (2, 2, "a")
    assert (part.pool, part.is_freed) == (pool, False)
    assert repr(part) == "<madl.Memory on cpu: 2 bytes>"


@pytest.mark.parametrize(
    "cut",
    [slice(None), slice(-3, None), slice(4, 2), slice(8, 99), slice(10, 10)],
    ids=str,
)
def test_slices_are_cut_as_of_bytes(pool: Pool, cut: slice) -> None:
    memory = pool.allocate(10)
    memory.copy_from(b"0123456789")

    assert memory[cut].tobytes() == b"0123456789"[cut]


def test_a_slice_writes_to_its_memory(pool: Pool) -> None:
    memory = pool.allocate(4)
    memory.fill(0)

    memory[1:3].fill(9)

    assert memory.tobytes() == b"\0\x09\x09\0"


def test_a_slice_keeps_its_memory(pool: Pool) -> None:
    part = pool.allocate(1000)[0:4]

    assert pool.stats().live_nbytes == 1000
    del part
    assert pool.stats().live_nbytes == 0


def test_a_slice_is_not_freed(pool: Pool) -> None:
    memory = pool.allocate(8)
    with memory[0:4] as part, pytest.raises(ValueError, match=r"^cpu") as caught:
        part.free()

    assert str(caught.value) == (
        "cpu: a slice of 4 bytes cannot be freed; free the memory that it was cut from"
    )
    assert not memory.is_freed


@pytest.mark.parametrize(
    ("part", "error", "text"),
    [
        (
            0,
            TypeError,
            "a Memory is cut with a slice such as mem[0:64], got 0; for single bytes "
            "use mem.memoryview()",
        ),
        (
            slice(None, None, 2),
            ValueError,
            "a Memory is cut in steps of 1 byte, got 2",
        ),
    ],
    ids=["int", "step"],
)
def test_only_whole_parts_are_cut(
    pool: Pool, part: slice, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        pool.allocate(8)[part]

    assert str(caught.value) == text


def test_fill_sets_every_byte(pool: Pool) -> None:
    memory = pool.allocate(1000)

    memory.fill(0xA5)

    assert memory.tobytes() == b"\xa5" * 1000


def test_fill_is_zero_by_default(pool: Pool) -> None:
    memory = pool.allocate(5)
    memory.fill(1)

    memory.fill()

    assert memory.tobytes() == bytes(5)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (-1, ValueError, "value must be a byte, 0 to 255, got -1"),
        (256, ValueError, "value must be a byte, 0 to 255, got 256"),
        (True, TypeError, "value must be an int, 0 to 255, got True (bool)"),
        ("0", TypeError, "value must be an int, 0 to 255, got '0' (str)"),
        (0.0, TypeError, "value must be an int, 0 to 255, got 0.0 (float)"),
    ],
)
def test_fill_takes_a_byte_only(
    pool: Pool, value: int, error: type[Exception], text: str
) -> None:
    memory = pool.allocate(4)

    with pytest.raises(error) as caught:
        memory.fill(value)

    assert str(caught.value) == text


def test_free_memory_is_not_iterated_like_a_sequence(pool: Pool) -> None:
    with pytest.raises(TypeError, match=r"^a Memory is cut with a slice"):
        next(iter(pool.allocate(4)))  # type: ignore[call-overload]


def test_a_memory_is_not_made_by_its_class() -> None:
    with pytest.raises(TypeError) as caught:
        Memory()

    assert str(caught.value) == "a Memory is made by Pool.allocate or madl.allocate"


def test_resize_refuses_a_view_that_a_reclaimer_made_meanwhile() -> None:
    pool = Pool("cpu", limit="4 MiB")
    others = [pool.allocate("1 MiB"), pool.allocate("2 MiB")]
    memory = pool.allocate("1 MiB")
    views: list[object] = []

    def look(_: int) -> None:
        views.append(memory.memoryview())
        others.clear()

    pool.on_out_of_memory(look)
    with pytest.raises(ValueError, match="cannot be resized while"):
        memory.resize("2 MiB")

    assert (memory.nbytes, pool.stats().live_nbytes) == (MIB, MIB)
    views.clear()
    memory.free()
    pool.check()


def test_resize_of_memory_that_a_reclaimer_freed_changes_nothing_more() -> None:
    pool = Pool("cpu", limit="4 MiB")
    others = [pool.allocate("2 MiB")]
    memory = pool.allocate("1 MiB")

    def give_up(_: int) -> None:
        memory.free()
        others.clear()

    pool.on_out_of_memory(give_up)
    with pytest.raises(FreedMemoryError):
        memory.resize("2 MiB")

    assert memory.is_freed
    assert pool.stats().live_nbytes == 0


def test_fill_does_not_write_to_memory_that_its_value_freed(pool: Pool) -> None:
    memory = pool.allocate(8)

    class Value:
        def __index__(self) -> int:
            memory.free()
            return 1

    with pytest.raises(FreedMemoryError):
        memory.fill(Value())  # type: ignore[arg-type]  # anything with __index__


def test_a_slice_of_many_slices_still_finds_its_memory(pool: Pool) -> None:
    memory = pool.allocate(4000)
    part = memory
    for _ in range(3000):
        part = part[1:]

    assert (part.address - memory.address, part.nbytes) == (3000, 1000)
