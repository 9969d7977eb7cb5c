"""The conformance suite: the tests of every backend, and those of each capability."""

import random
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from unittest import SkipTest

from madl.backends.protocol import (
    PROTOCOLS,
    Backend,
    Capability,
    MemoryInfo,
    Reservation,
    missing_names,
)
from madl.errors import OutOfMemoryError
from madl.hotpath import BLOCK_GRANULARITY
from madl.sizes import format_nbytes
from madl.testing.case import BackendCase
from madl.testing.committing import CommitTests, RemapTests, SettleTests
from madl.testing.content import (
    FillTests,
    HostAccessTests,
    ViewTests,
    ZeroWhenNewTests,
)
from madl.testing.copying import CopyTests, PeerCopyTests, StagedCopyTests
from madl.testing.ordering import CaptureTests, StreamTests
from madl.testing.pages import (
    GuardPagesTests,
    HandlePagesTests,
    HugePagesTests,
    NumaTests,
    PrefaultTests,
)
from madl.testing.sharing import CudaArrayTests, DlpackTests, ShareTests
from madl.testing.walk import PoolTests
from madl.testing.workbench import REFUSALS, Workbench

IMPOSSIBLE_NBYTES = 1 << 62

_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:\d+)?")
_NEEDS = {
    Capability.REMAP: Capability.COMMIT,
    Capability.HUGE_PAGES: Capability.COMMIT,
    Capability.HANDLE_PAGES: Capability.COMMIT,
    Capability.GUARD_PAGES: Capability.COMMIT | Capability.HOST_ACCESS,
    Capability.SETTLE: Capability.COMMIT,
    Capability.PEER_COPY: Capability.COPY,
    Capability.STAGED_COPY: Capability.COPY | Capability.STREAM_ORDERED,
    Capability.CAPTURE: Capability.STREAM_ORDERED,
    Capability.CUDA_ARRAY: Capability.STREAM_ORDERED,
}


class MandatoryTests(BackendCase):
    """The mandatory part of the protocol."""

    def test_it_has_the_seven_names_of_a_backend(self) -> None:
        missing = missing_names(self.open_backend(), Backend)
        assert not missing, f"a backend must have {', '.join(missing)}"

    def test_its_device_has_a_proper_name(self) -> None:
        with self.workbench() as bench:
            device = bench.backend.device
            assert isinstance(device, str), f"device must be a text, got {device!r}"
            assert _DEVICE.fullmatch(device), (
                f"device must be named like 'cpu' or 'cuda:0', got {device!r}"
            )

    def test_every_capability_that_it_claims_has_its_methods(self) -> None:
        with self.workbench() as bench:
            claimed = bench.backend.capabilities
            assert isinstance(claimed, Capability), (
                f"capabilities must be a Capability, got {claimed!r}"
            )
            for capability, protocol in PROTOCOLS.items():
                missing = missing_names(bench.backend, protocol)
                assert capability not in claimed or not missing, (
                    f"it claims {capability.name}, but has no {', '.join(missing)}"
                )

    def test_it_claims_what_its_capabilities_need(self) -> None:
        with self.workbench() as bench:
            for capability, needed in _NEEDS.items():
                assert not bench.has(capability) or bench.has(needed), (
                    f"it claims {capability.name} without {needed.name}"
                )

    def test_its_capabilities_are_constant(self) -> None:
        with self.workbench() as bench:
            before = bench.backend.capabilities
            bench.usable(bench.unit)
            after = bench.backend.capabilities
            assert before == after, f"capabilities were {before!r}, and now {after!r}"

    def test_its_sizes_are_plausible(self) -> None:
        with self.workbench() as bench:
            granularity = bench.backend.granularity
            alignment = bench.backend.alignment
            assert granularity > 0, f"granularity must be positive, got {granularity}"
            is_power_of_two = alignment > 0 and alignment & (alignment - 1) == 0
            assert is_power_of_two, f"alignment must be a power of two, got {alignment}"

    def test_its_memory_info_is_plausible(self) -> None:
        with self.workbench() as bench:
            info = bench.backend.memory_info()
            assert isinstance(info, MemoryInfo), f"expected a MemoryInfo, got {info!r}"
            assert 0 <= info.available_nbytes <= info.total_nbytes > 0, (
                f"available must be between 0 and total, got {info}"
            )

    def test_what_it_says_of_itself_is_text(self) -> None:
        with self.workbench(Capability.DESCRIBE) as bench:
            for name, value in bench.backend.describe().items():
                assert isinstance(name, str), f"describe() has a key {name!r}, no text"
                assert isinstance(value, str), (
                    f"describe() has {name!r}: {value!r}, no text"
                )

    def test_a_simulated_device_is_one_of_its_own(self) -> None:
        with self.workbench(Capability.SIMULATED) as bench, self.workbench() as other:
            if bench.backend is other.backend:
                raise SkipTest("make_backend() returns the same backend each time")
            before = other.available_nbytes()
            bench.usable(bench.unit)
            assert other.available_nbytes() == before, (
                "it claims SIMULATED, but two of its objects take from one device"
            )

    def test_a_reservation_is_what_was_asked_for(self) -> None:
        with self.workbench() as bench:
            for granules in (1, 2, 3, 7, 64):
                nbytes = granules * bench.granule
                reservation = bench.reserve(nbytes)
                assert isinstance(reservation, Reservation), (
                    f"reserve must return a Reservation, got {reservation!r}"
                )
                assert reservation.nbytes == nbytes, (
                    f"{nbytes} bytes were asked for, the reservation says "
                    f"{reservation.nbytes}: sizes given back must be exact"
                )

    def test_a_reservation_is_aligned(self) -> None:
        with self.workbench() as bench:
            alignment = bench.backend.alignment
            for granules in (1, 3, 1, 5, 1):
                address = bench.reserve(granules * bench.granule).address or 0
                assert address % alignment == 0, (
                    f"address {address:#x} is no multiple of the alignment {alignment}"
                )
                assert address % BLOCK_GRANULARITY == 0, (
                    f"address {address:#x} is no multiple of {BLOCK_GRANULARITY}, "
                    "which a pool needs: reserve with a larger alignment"
                )

    def test_reservations_do_not_overlap(self) -> None:
        with self.workbench() as bench:
            held = [bench.reserve((1 + n % 3) * bench.unit) for n in range(16)]
            placed = sorted(
                (one.address, one.address + one.nbytes)
                for one in held
                if one.address is not None
            )
            for (_, end), (start, _) in pairwise(placed):
                assert end <= start, (
                    f"two live reservations overlap: one ends at {end:#x}, another "
                    f"starts at {start:#x}"
                )

    def test_reservations_are_released_in_any_order(self) -> None:
        with self.workbench() as bench:
            shuffled = random.Random(1)
            held: list[Reservation] = []
            for _ in range(64):
                if held and shuffled.random() < 0.5:
                    bench.release(held.pop(shuffled.randrange(len(held))))
                else:
                    held.append(bench.reserve(shuffled.randint(1, 4) * bench.granule))

    def test_release_gives_the_memory_back(self) -> None:
        with self.workbench() as bench:
            before = bench.available_nbytes()
            nbytes = bench.large_nbytes(self.most_nbytes)
            rounds = min(2 * before // nbytes + 2, 64)
            for number in range(1, rounds + 1):
                try:
                    bench.release(bench.usable(nbytes))
                except OutOfMemoryError as error:
                    raise AssertionError(
                        f"release does not give the memory back: of {rounds} times "
                        f"{format_nbytes(nbytes)}, each released before the next, "
                        f"number {number} was refused"
                    ) from error
            lost = before - bench.available_nbytes()
            # Other programs take and give too, but hardly as much as that.
            assert lost < min(rounds * nbytes // 2, before * 3 // 4), (
                f"release does not give the memory back: {format_nbytes(lost)} are "
                f"gone after {rounds} times {format_nbytes(nbytes)}, all released"
            )

    def test_any_thread_may_call_it(self) -> None:
        with self.workbench() as bench:
            reservation = bench.usable(bench.unit)
            with ThreadPoolExecutor(1) as thread:
                thread.submit(bench.release, reservation).result()
                made = thread.submit(bench.usable, bench.unit).result()
            bench.release(made)

    def test_a_second_release_is_an_error(self) -> None:
        with self.workbench() as bench:
            reservation = bench.reserve(bench.granule)
            bench.release(reservation)
            _assert_refused(bench, reservation, "a second release")
            bench.reserve(bench.granule)

    def test_releasing_the_reservation_of_another_backend_is_an_error(self) -> None:
        with self.workbench() as bench, self.workbench() as other:
            if bench.backend is other.backend:
                raise SkipTest("make_backend() returns the same backend each time")
            reservation = other.reserve(bench.granule)
            _assert_refused(bench, reservation, "the release of a foreign reservation")
            other.release(reservation)  # it is as it was

    def test_more_than_any_device_has_is_out_of_memory(self) -> None:
        with self.workbench() as bench:
            nbytes = IMPOSSIBLE_NBYTES // bench.granule * bench.granule
            before = bench.available_nbytes()
            error = _refusal(bench, nbytes)
            device = bench.backend.device
            assert error.device == device, (
                f"the error names device {error.device!r}, the backend is {device!r}"
            )
            assert error.requested == nbytes, (
                f"{nbytes} bytes were asked for, the error says {error.requested}"
            )
            bench.assert_nothing_taken(before, "a refused reservation")
            bench.usable(bench.unit)


def _refusal(bench: Workbench, nbytes: int) -> OutOfMemoryError:
    try:
        bench.reserve(nbytes)
    except OutOfMemoryError as error:
        return error
    except Exception as error:
        raise AssertionError(
            f"a device that refuses raises OutOfMemoryError, got {error!r}"
        ) from error
    raise AssertionError(f"reserve({nbytes}) must be refused: no device has as much")


def _assert_refused(bench: Workbench, reservation: Reservation, what: str) -> None:
    try:
        bench.backend.release(reservation)
    except REFUSALS:
        return
    except Exception as error:
        raise AssertionError(
            f"{what} must raise ValueError or BackendCallError, got {error!r}"
        ) from error
    raise AssertionError(f"{what} must raise ValueError or BackendCallError")


class BackendConformance(
    MandatoryTests,
    CommitTests,
    RemapTests,
    SettleTests,
    HugePagesTests,
    HandlePagesTests,
    GuardPagesTests,
    PrefaultTests,
    NumaTests,
    HostAccessTests,
    ZeroWhenNewTests,
    CopyTests,
    PeerCopyTests,
    StagedCopyTests,
    FillTests,
    ViewTests,
    StreamTests,
    CaptureTests,
    DlpackTests,
    CudaArrayTests,
    ShareTests,
    PoolTests,
):
    """Subclass it in your tests and override ``make_backend``; pytest does the rest.

    ``make_stream``, ``bytes_of_view`` and ``most_nbytes`` may be overridden too. A
    test whose capability the backend does not claim is skipped, so claiming one is
    what turns its tests on.
    """
