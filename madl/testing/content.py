"""Conformance tests of HOST_ACCESS, ZERO_WHEN_NEW, FILL and VIEW: what bytes are."""

from madl.backends.protocol import Capability
from madl.hotpath import BLOCK_GRANULARITY
from madl.testing.case import BackendCase
from madl.testing.workbench import address_of, assert_bytes, pattern

ODD_OFFSET, ODD_NBYTES = 1037, 1001  # copies and fills are of any bytes


class HostAccessTests(BackendCase):
    """What ``Capability.HOST_ACCESS`` promises, and what has an address besides."""

    def test_every_byte_is_readable_and_writable(self) -> None:
        with self.workbench(Capability.HOST_ACCESS) as bench:
            nbytes = 3 * bench.unit
            reservation, data = bench.written(nbytes)
            bench.assert_holds(reservation, 0, data, "by the CPU")

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
                what = f"reservation {seed} of 8, after all were written"
                bench.assert_holds(reservation, 0, pattern(bench.unit, seed), what)


class ZeroWhenNewTests(BackendCase):
    """What ``Capability.ZERO_WHEN_NEW`` promises."""

    def test_what_was_never_written_reads_as_zero(self) -> None:
        with self.content_workbench(Capability.ZERO_WHEN_NEW) as bench:
            nbytes = 4 * bench.unit
            for number in range(3):
                reservation = bench.usable(nbytes)
                what = f"reservation {number}, unwritten"
                bench.assert_holds(reservation, 0, bytes(nbytes), what)
                bench.write(reservation, 0, pattern(nbytes, number))
                bench.release(reservation)


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
                (90, ODD_OFFSET, ODD_NBYTES),
                (7, nbytes - 3, 3),
            ):
                bench.backend.fill(reservation, offset, count, value)
                expected[offset : offset + count] = bytes([value]) * count
            if bench.has_content:
                bench.assert_holds(reservation, 0, expected, "after four fills")


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
