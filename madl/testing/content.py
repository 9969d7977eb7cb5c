"""Tests of HOST_ACCESS, COPY, FILL and VIEW: bytes are where they were put."""

from madl.backends.protocol import Capability
from madl.hotpath import BLOCK_GRANULARITY
from madl.testing.case import BackendCase
from madl.testing.workbench import address_of, assert_bytes, pattern

_ODD_OFFSET, _ODD_NBYTES = 1037, 1001  # copies and fills are of any bytes


class HostAccessTests(BackendCase):
    """What ``Capability.HOST_ACCESS`` promises, and what has an address besides."""

    def test_every_byte_is_readable_and_writable(self) -> None:
        with self.workbench(Capability.HOST_ACCESS) as bench:
            nbytes = 3 * bench.unit
            reservation = bench.usable(nbytes)
            data = pattern(nbytes, 1)
            bench.write(reservation, 0, data)
            assert_bytes(bench.read(reservation, 0, nbytes), data, "by the CPU")

    def test_memory_that_host_and_device_share_has_an_address(self) -> None:
        with self.workbench() as bench:
            shared = Capability.HOST_ACCESS | Capability.PINNED | Capability.MANAGED
            if bench.backend.capabilities & shared:
                address_of(bench.reserve(bench.unit))

    def test_reservations_have_bytes_of_their_own(self) -> None:
        with self.content_workbench() as bench:
            held = [bench.usable(bench.unit) for _ in range(8)]
            for seed, reservation in enumerate(held):
                bench.write(reservation, 0, pattern(bench.unit, seed))
            for seed, reservation in enumerate(held):
                assert_bytes(
                    bench.read(reservation, 0, bench.unit),
                    pattern(bench.unit, seed),
                    f"reservation {seed} of 8, after all were written",
                )


class CopyTests(BackendCase):
    """What ``Capability.COPY`` promises without a stream."""

    def test_bytes_go_to_the_device_and_back(self) -> None:
        with self.workbench(Capability.COPY) as bench:
            nbytes = 3 * bench.unit
            reservation = bench.usable(nbytes)
            data = pattern(nbytes, 1)
            bench.backend.copy_from_host(reservation, 0, memoryview(data))
            found = bytearray(nbytes)
            bench.backend.copy_to_host(reservation, 0, memoryview(found))
            assert_bytes(bytes(found), data, "copied from and to the host")

    def test_a_copy_changes_its_own_bytes_only(self) -> None:
        with self.workbench(Capability.COPY) as bench:
            nbytes = 2 * bench.unit
            reservation = bench.usable(nbytes)
            expected = bytearray(pattern(nbytes, 1))
            bench.backend.copy_from_host(reservation, 0, memoryview(expected))
            data = pattern(_ODD_NBYTES, 2)
            stop = _ODD_OFFSET + _ODD_NBYTES
            bench.backend.copy_from_host(reservation, _ODD_OFFSET, memoryview(data))
            expected[_ODD_OFFSET:stop] = data
            found = bytearray(nbytes)
            bench.backend.copy_to_host(reservation, 0, memoryview(found))
            assert_bytes(bytes(found), bytes(expected), "after a copy into the middle")
            part = bytearray(_ODD_NBYTES)
            bench.backend.copy_to_host(reservation, _ODD_OFFSET, memoryview(part))
            assert_bytes(bytes(part), data, "copied out of the middle")

    def test_a_copy_is_complete_on_return(self) -> None:
        with self.workbench(Capability.COPY) as bench:
            nbytes = 16 * bench.unit
            reservation = bench.usable(nbytes)
            data = pattern(nbytes, 1)
            source = bytearray(data)
            bench.backend.copy_from_host(reservation, 0, memoryview(source))
            source[:] = bytes(nbytes)  # it must not be looked at any more
            found = bytearray(nbytes)
            bench.backend.copy_to_host(reservation, 0, memoryview(found))
            assert_bytes(bytes(found), data, "without a stream, from changed memory")

    def test_bytes_move_inside_the_device(self) -> None:
        with self.workbench(Capability.COPY) as bench:
            nbytes = 2 * bench.unit
            source, target = bench.usable(nbytes), bench.usable(nbytes)
            data = pattern(nbytes, 1)
            bench.write(source, 0, data)
            bench.write(target, 0, bytes(nbytes))
            bench.backend.copy_inside(source, 5, target, _ODD_OFFSET, _ODD_NBYTES)
            bench.backend.copy_inside(target, _ODD_OFFSET, target, 3, 512)
            expected = bytearray(nbytes)
            expected[_ODD_OFFSET : _ODD_OFFSET + _ODD_NBYTES] = data[
                5 : 5 + _ODD_NBYTES
            ]
            expected[3:515] = data[5:517]
            assert_bytes(
                bench.read(target, 0, nbytes), bytes(expected), "copied inside"
            )
            assert_bytes(bench.read(source, 0, nbytes), data, "the source of a copy")


class FillTests(BackendCase):
    """What ``Capability.FILL`` promises without a stream."""

    def test_a_fill_changes_its_own_bytes_only(self) -> None:
        with self.workbench(Capability.FILL) as bench:
            nbytes = 2 * bench.unit
            reservation = bench.usable(nbytes)
            expected = bytearray(pattern(nbytes, 1))
            if bench.has_content:
                bench.write(reservation, 0, bytes(expected))
            for value, offset, count in (
                (0, 0, 512),
                (255, 512, 1),
                (90, _ODD_OFFSET, _ODD_NBYTES),
                (7, nbytes - 3, 3),
            ):
                bench.backend.fill(reservation, offset, count, value)
                expected[offset : offset + count] = bytes([value]) * count
            if bench.has_content:
                found = bench.read(reservation, 0, nbytes)
                assert_bytes(found, bytes(expected), "after four fills")


class ViewTests(BackendCase):
    """What ``Capability.VIEW`` promises."""

    def test_parts_of_a_reservation_are_native_objects(self) -> None:
        with self.workbench(Capability.VIEW) as bench:
            nbytes = 4 * bench.unit
            reservation = bench.usable(nbytes)
            if bench.has_content:
                bench.write(reservation, 0, pattern(nbytes, 1))
            for offset in (0, BLOCK_GRANULARITY, bench.unit, nbytes - 512):
                view = bench.backend.view(reservation, offset, 512)
                assert view is not None, f"the view of offset {offset} is None"
                found = self.bytes_of_view(bench.backend, view)
                if found is not None and bench.has_content:
                    expected = pattern(nbytes, 1)[offset : offset + 512]
                    assert_bytes(found, expected, f"the view of offset {offset}")
                del view
