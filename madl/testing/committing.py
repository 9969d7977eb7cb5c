"""Conformance tests of COMMIT, REMAP and SETTLE: addresses first, memory later."""

from unittest import SkipTest

from madl.backends.protocol import Capability, Reservation
from madl.errors import OutOfMemoryError
from madl.sizes import ADDRESS_SPACE_NBYTES, format_nbytes
from madl.testing.case import BackendCase
from madl.testing.workbench import Workbench, pattern

_MOST_ADDRESSES = 1 << 60
_PLENTY_OF_ADDRESSES = ADDRESS_SPACE_NBYTES // 4


class CommitTests(BackendCase):
    """What ``Capability.COMMIT`` promises."""

    def test_its_page_is_a_multiple_of_its_granularity(self) -> None:
        with self.workbench(Capability.COMMIT) as bench:
            page = bench.backend.page_nbytes
            assert page > 0 == page % bench.granule, (
                f"page_nbytes must be a positive multiple of the granularity "
                f"{bench.granule}, got {page}"
            )

    def test_a_reservation_of_addresses_takes_no_memory(self) -> None:
        with self.workbench(Capability.COMMIT) as bench:
            before = bench.available_nbytes()
            nbytes = bench.whole(min(before, _PLENTY_OF_ADDRESSES))
            bench.reserve(nbytes)
            after = bench.available_nbytes()
            assert before - after <= nbytes // 2, (
                "with COMMIT a reservation is of addresses only, but "
                f"{format_nbytes(before)} were available before one of "
                f"{format_nbytes(nbytes)}, and {format_nbytes(after)} after"
            )

    def test_any_granules_are_committed_and_decommitted(self) -> None:
        with self.workbench(Capability.COMMIT) as bench:
            granule = bench.granule
            reservation = bench.reserve(16 * granule)
            for first, count in ((3, 1), (4, 2), (0, 3), (15, 1)):
                bench.commit(reservation, first * granule, count * granule)
                use(bench, reservation, first * granule, count * granule)
            # Parts of what one call has committed, and several of these together.
            for first, count in ((2, 3), (0, 1), (15, 1), (5, 1), (1, 1)):
                bench.backend.decommit(reservation, first * granule, count * granule)
            bench.commit(reservation, 0, 16 * granule)
            use(bench, reservation, 0, 16 * granule)

    def test_a_decommit_keeps_what_is_beside_it(self) -> None:
        with self.content_workbench(Capability.COMMIT) as bench:
            unit = bench.unit
            reservation = bench.usable(3 * unit)
            for part in (0, 2):
                bench.write(reservation, part * unit, pattern(unit, part))
            bench.backend.decommit(reservation, unit, unit)
            bench.commit(reservation, unit, unit)
            bench.write(reservation, unit, pattern(unit, 1))
            for part in (0, 1, 2):
                what = f"part {part} of 3, after a decommit"
                bench.assert_holds(reservation, part * unit, pattern(unit, part), what)

    def test_a_release_needs_no_decommit(self) -> None:
        with self.workbench(Capability.COMMIT) as bench:
            for parts in ((), (0,), (1, 3), (0, 1, 2, 3)):
                reservation = bench.reserve(4 * bench.granule)
                for part in parts:
                    bench.commit(reservation, part * bench.granule, bench.granule)
                bench.release(reservation)

    def test_a_decommit_gives_the_memory_back(self) -> None:
        with self.workbench(Capability.COMMIT) as bench:
            before = bench.available_nbytes()
            nbytes = bench.large_nbytes(self.most_nbytes)
            rounds = min(2 * before // nbytes + 2, 64)
            reservation = bench.reserve(nbytes)
            for number in range(1, rounds + 1):
                try:
                    bench.commit(reservation, 0, nbytes)
                except OutOfMemoryError as error:
                    raise AssertionError(
                        "decommit does not give the memory back: "
                        f"{format_nbytes(nbytes)} were committed and decommitted "
                        f"{number - 1} times, then refused"
                    ) from error
                bench.backend.decommit(reservation, 0, nbytes)

    def test_release_gives_the_addresses_back(self) -> None:
        with self.workbench(Capability.COMMIT) as bench:
            nbytes = _most_addresses(bench)
            for number in range(1, 5):
                try:
                    bench.release(bench.reserve(nbytes))
                except OutOfMemoryError as error:
                    raise AssertionError(
                        "release does not give the addresses back: "
                        f"{format_nbytes(nbytes)} were reserved and released "
                        f"{number} times, then refused"
                    ) from error

    def test_a_refused_commit_changes_nothing(self) -> None:
        with self.workbench(Capability.COMMIT) as bench:
            nbytes = bench.whole(4 * bench.backend.memory_info().total_nbytes)
            try:
                reservation = bench.reserve(nbytes)
            except OutOfMemoryError as error:
                raise SkipTest(
                    "it has no addresses for four times its memory"
                ) from error
            before = bench.available_nbytes()
            refusal = None
            try:
                bench.commit(reservation, 0, nbytes)
            except OutOfMemoryError as error:
                refusal = error
            if refusal is None:
                raise SkipTest("it commits when memory is touched, so refuses nothing")
            assert refusal.requested == nbytes, (
                f"{nbytes} bytes were to be committed, the error says "
                f"{refusal.requested}"
            )
            bench.assert_nothing_taken(before, "a refused commit")
            bench.commit(reservation, 0, bench.unit)
            use(bench, reservation, 0, bench.unit)


class RemapTests(BackendCase):
    """What ``Capability.REMAP`` promises. The content of what moves it does not."""

    def test_memory_moves_inside_a_reservation(self) -> None:
        with self.workbench(Capability.REMAP) as bench:
            unit = bench.unit
            reservation = bench.reserve(8 * unit)
            bench.commit(reservation, 0, 3 * unit)
            bench.backend.remap(reservation, unit, 5 * unit, 2 * unit)
            use(bench, reservation, 5 * unit, 2 * unit)
            # Now the destination is committed, and the source is not.
            bench.backend.decommit(reservation, 5 * unit, unit)
            bench.commit(reservation, unit, 2 * unit)
            use(bench, reservation, 0, 3 * unit)

    def test_memory_moves_into_another_reservation(self) -> None:
        with self.workbench(Capability.REMAP) as bench:
            unit = bench.unit
            source, target = bench.usable(4 * unit), bench.reserve(4 * unit)
            bench.backend.remap(source, unit, 0, 2 * unit, into=target)
            bench.release(source)
            use(bench, target, 0, 2 * unit)
            bench.backend.remap(target, 0, 3 * unit, unit, into=target)
            use(bench, target, unit, unit)
            use(bench, target, 3 * unit, unit)

    def test_what_moves_leaves_the_rest_as_it_was(self) -> None:
        with self.content_workbench(Capability.REMAP) as bench:
            unit = bench.unit
            reservation = bench.reserve(6 * unit)
            bench.commit(reservation, 0, 3 * unit)
            for part in range(3):
                bench.write(reservation, part * unit, pattern(unit, part))
            bench.backend.remap(reservation, unit, 4 * unit, unit)
            for part in (0, 2):
                what = f"part {part} of 3, after a remap"
                bench.assert_holds(reservation, part * unit, pattern(unit, part), what)

    def test_moving_takes_no_new_memory(self) -> None:
        with self.workbench(Capability.REMAP) as bench:
            nbytes = bench.large_nbytes(self.most_nbytes)
            nbytes = bench.whole(min(nbytes, _PLENTY_OF_ADDRESSES // 2))
            reservation = bench.reserve(2 * nbytes)
            bench.commit(reservation, 0, nbytes)
            try:
                for source in (0, nbytes, 0, nbytes):
                    bench.backend.remap(reservation, source, nbytes - source, nbytes)
            except OutOfMemoryError as error:
                raise AssertionError(
                    "moving memory must take none: of about twice "
                    f"{format_nbytes(nbytes)}, moving one to and fro was refused"
                ) from error


class SettleTests(BackendCase):
    """What ``Capability.SETTLE`` promises."""

    def test_a_range_is_settled_however_much_of_it_is_committed(self) -> None:
        with self.workbench(Capability.SETTLE) as bench:
            unit = bench.unit
            for committed in ((), (1,), (2, 3), (1, 2, 3)):
                reservation = bench.reserve(6 * unit)
                for part in (0, *committed):
                    bench.commit(reservation, part * unit, unit)
                bench.backend.settle(reservation, unit, 3 * unit, committed_nbytes=unit)
                bench.commit(reservation, unit, 3 * unit)
                use(bench, reservation, 0, 4 * unit)
                bench.backend.decommit(reservation, 0, 4 * unit)
                bench.release(reservation)


def use(bench: Workbench, reservation: Reservation, offset: int, nbytes: int) -> None:
    """Write and read the ends of a committed range, where that can be done."""
    if not bench.has_content:
        return
    piece = min(nbytes, 64)
    for start in (offset, offset + nbytes - piece):
        data = pattern(piece, start)
        bench.write(reservation, start, data)
        bench.assert_holds(reservation, start, data, f"offset {start}, committed")


def _most_addresses(bench: Workbench) -> int:
    """Return what can be reserved, twice which cannot: two of it are too much."""
    nbytes = bench.whole(bench.backend.memory_info().total_nbytes)
    while nbytes > bench.unit:
        try:
            bench.release(bench.reserve(nbytes))
            break
        except OutOfMemoryError:
            nbytes = bench.whole(nbytes // 2)
    while nbytes < _MOST_ADDRESSES:
        try:
            bench.release(bench.reserve(2 * nbytes))
        except OutOfMemoryError:
            break
        nbytes *= 2
    return nbytes
