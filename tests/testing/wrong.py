"""Backends that are wrong in one way each."""

import threading
from typing import ClassVar

from madl.backends.protocol import (
    Backend,
    Capability,
    HugePages,
    MemoryInfo,
    Reservation,
    Staging,
)
from madl.errors import (
    BackendCallError,
    MissingCapabilityError,
    NativeFailure,
    OutOfMemoryError,
)
from madl.testing import FakeBackend, FakeEvent, FakeStream, FakeView
from madl.testing.fakes import FakeExport

EVERYTHING = ~Capability.SHARE
WITHOUT_COMMIT = (
    EVERYTHING
    & ~(Capability.COMMIT | Capability.REMAP | Capability.HUGE_PAGES)
    & ~(Capability.HANDLE_PAGES | Capability.GUARD_PAGES | Capability.SETTLE)
)
DISTANT = (
    WITHOUT_COMMIT
    & ~(Capability.HOST_ACCESS | Capability.PINNED | Capability.MANAGED)
    & ~Capability.DLPACK
)
"""Memory that the CPU cannot reach."""


class Wrong(FakeBackend):
    """Can do everything within one process, until a subclass spoils it."""

    can = EVERYTHING

    def __init__(self) -> None:
        super().__init__(total_nbytes=8 << 20, capabilities=self.can)


class NeverReleases(Wrong):
    can = WITHOUT_COMMIT

    kept_nbytes = 0

    def release(self, reservation: Reservation) -> None:
        super().release(reservation)
        self.kept_nbytes += reservation.nbytes

    def _ask_for(self, call: str, nbytes: int) -> None:
        super()._ask_for(call, nbytes + self.kept_nbytes)


class KeepsAddresses(Wrong):
    def release(self, reservation: Reservation) -> None:
        super().release(reservation)
        self.reservations[-len(self.calls)] = reservation  # counted for ever


class HandsOutTheSameMemory(Wrong):
    can = WITHOUT_COMMIT

    def reserve(self, nbytes: int) -> Reservation:
        made = super().reserve(nbytes)
        before = [one for one in self.reservations.values() if one.nbytes >= nbytes]
        return made._replace(address=before[0].address)

    def release(self, reservation: Reservation) -> None:
        address = self._addresses.get(reservation.native)
        super().release(self.reservations.get(address or 0, reservation))


class MixesUpReservations(Wrong):
    can = DISTANT

    def copy_from_host(
        self,
        reservation: Reservation,
        offset: int,
        source: memoryview,
        *,
        stream: object = None,
    ) -> None:
        first = next(iter(self.reservations.values()))
        if first.nbytes == reservation.nbytes:
            reservation = first
        super().copy_from_host(reservation, offset, source, stream=stream)


class CommitsLargerPieces(Wrong):
    """Its granularity is 16 KiB, whatever it says."""

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        if offset % 16384 or nbytes % 16384:
            native = NativeFailure("commit", 22, "invalid argument")
            raise BackendCallError(self.device, "commit", native)
        super().commit(reservation, offset, nbytes)


class SaysMoreThanWasAskedFor(Wrong):
    def reserve(self, nbytes: int) -> Reservation:
        made = super().reserve(nbytes)
        return made._replace(nbytes=(nbytes + 65535) // 65536 * 65536)

    def _known(self, reservation: Reservation) -> int:
        address = self._addresses.get(reservation.native, 0)
        return super()._known(self.reservations.get(address, reservation))


class IsNotAligned(Wrong):
    can = DISTANT & ~(Capability.COPY | Capability.FILL)

    def __init__(self) -> None:
        super().__init__()
        self._next_address += 64


class IsAlignedToNoPowerOfTwo(Wrong):
    def __init__(self) -> None:
        super().__init__()
        self.alignment = 3 * 4096


class ReleasesInReverseOnly(Wrong):
    def release(self, reservation: Reservation) -> None:
        if reservation.native in self._addresses:
            assert reservation is [*self.reservations.values()][-1], "not the last one"
        super().release(reservation)


class BelongsToOneThread(Wrong):
    def __init__(self) -> None:
        super().__init__()
        self._owner = threading.get_ident()

    def release(self, reservation: Reservation) -> None:
        if threading.get_ident() != self._owner:
            native = NativeFailure("free", 201, "invalid context")
            raise BackendCallError(self.device, "release", native)
        super().release(reservation)


class DescribesItselfInNumbers(Wrong):
    def describe(self) -> dict[str, object]:  # type: ignore[override]  # the mistake
        return {"folder": "/", "level": 7}


class NamesItselfInWords(Wrong):
    def __init__(self) -> None:
        super().__init__()
        self.device = "My device"


class HasMoreLeftThanItHas(Wrong):
    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(self.total_nbytes, self.total_nbytes + 1)


class ClaimsWhatItHasNot:
    device = "wrong"
    capabilities = Capability.COPY
    granularity = alignment = 4096

    def reserve(self, nbytes: int) -> Reservation:
        return Reservation(0, nbytes, None)

    def release(self, reservation: Reservation) -> None:
        """Do nothing."""

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(1 << 30, 1 << 30)


class HasNoMemoryInfo:
    device = "wrong"
    capabilities = Capability.NONE
    alignment = 4096
    reserve = release = None


class RemapsWithoutCommit(Wrong):
    can = WITHOUT_COMMIT | Capability.REMAP


class ChangesItsMind(Wrong):
    def reserve(self, nbytes: int) -> Reservation:
        self.capabilities &= ~Capability.PINNED
        return super().reserve(nbytes)


class RaisesAnyMemoryError(Wrong):
    def _refusal(self, call: str, nbytes: int, text: str) -> MemoryError:  # type: ignore[override]  # the mistake
        return MemoryError(text)


class GivesTheWrongNumbers(Wrong):
    def _refusal(self, call: str, nbytes: int, text: str) -> OutOfMemoryError:
        return super()._refusal(call, 0, text)


class TakesWhatItRefuses(Wrong):
    can = WITHOUT_COMMIT

    def _refusal(self, call: str, nbytes: int, text: str) -> OutOfMemoryError:
        self._committed |= set(range(0, 5 << 20, 4096))
        return super()._refusal(call, nbytes, text)


class TakesWhatItRefusesToCommit(Wrong):
    def _refusal(self, call: str, nbytes: int, text: str) -> OutOfMemoryError:
        if call == "commit":
            self._committed |= set(range(0, 5 << 20, 4096))
        return super()._refusal(call, nbytes, text)


class AcceptsASecondRelease(Wrong):
    def release(self, reservation: Reservation) -> None:
        if reservation.native in self._addresses:
            super().release(reservation)


class RaisesKeyErrorForAForeigner(Wrong):
    def release(self, reservation: Reservation) -> None:
        if reservation.native not in self._addresses:
            raise KeyError(reservation.native)
        super().release(reservation)


class CommitsAtOnce(Wrong):
    def reserve(self, nbytes: int) -> Reservation:
        made = super().reserve(nbytes)
        address = self._addresses[made.native]
        self._committed |= set(range(address, address + nbytes * 3 // 4, 4096))
        return made


class HasAnOddPage(Wrong):
    def __init__(self) -> None:
        super().__init__()
        self.page_nbytes = 5000


class NeverDecommits(Wrong):
    kept_nbytes = 0

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        super().decommit(reservation, offset, nbytes)
        self.kept_nbytes += nbytes

    def _ask_for(self, call: str, nbytes: int) -> None:
        super()._ask_for(call, nbytes + self.kept_nbytes)


class DecommitsTooMuch(Wrong):
    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        super().decommit(reservation, offset, nbytes)
        if offset:
            self._spoil(self._addresses[reservation.native] + offset - 1, 1)


class MovesTooMuch(Wrong):
    def remap(
        self,
        reservation: Reservation,
        source: int,
        destination: int,
        nbytes: int,
        *,
        into: Reservation | None = None,
    ) -> None:
        super().remap(reservation, source, destination, nbytes, into=into)
        self._spoil(self._addresses[reservation.native] + source + nbytes, 1)


class MovesIntoItselfOnly(Wrong):
    def remap(
        self,
        reservation: Reservation,
        source: int,
        destination: int,
        nbytes: int,
        *,
        into: Reservation | None = None,
    ) -> None:
        super().remap(reservation, source, destination, nbytes)


class TakesNewMemoryToMove(Wrong):
    def remap(
        self,
        reservation: Reservation,
        source: int,
        destination: int,
        nbytes: int,
        *,
        into: Reservation | None = None,
    ) -> None:
        self._ask_for("remap", nbytes)
        super().remap(reservation, source, destination, nbytes, into=into)
        self.total_nbytes -= nbytes


class RefusesSmallPages(Wrong):
    def choose_pages(self, page_nbytes: int, *, huge: HugePages) -> None:
        if huge is False:
            raise MissingCapabilityError(self.device, "small pages", "none")


class FaultsInWhatItDoesNotCommit(Wrong):
    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        if not self.is_prefaulting:
            super().commit(reservation, offset, nbytes)


class HasAnyNode(Wrong):
    def choose_node(self, node: int | None) -> None:
        self.node = node


class LetsNobodyUnchooseANode(Wrong):
    def choose_node(self, node: int | None) -> None:
        if node != 0:
            raise MissingCapabilityError(self.device, f"NUMA node {node}", "node 0")


class ReturnsBeforeItHasCopied(Wrong):
    can = DISTANT

    def __init__(self) -> None:
        super().__init__()
        self._late = self.make_stream()

    def copy_from_host(
        self,
        reservation: Reservation,
        offset: int,
        source: memoryview,
        *,
        stream: object = None,
    ) -> None:
        super().copy_from_host(reservation, offset, source, stream=stream or self._late)

    def copy_to_host(
        self,
        reservation: Reservation,
        offset: int,
        destination: memoryview,
        *,
        stream: object = None,
    ) -> None:
        self._late.pump()
        super().copy_to_host(reservation, offset, destination, stream=stream)


class CopiesWholeWords(Wrong):
    can = DISTANT

    def copy_from_host(
        self,
        reservation: Reservation,
        offset: int,
        source: memoryview,
        *,
        stream: object = None,
    ) -> None:
        super().copy_from_host(reservation, offset // 8 * 8, source, stream=stream)


class CopiesTheOtherWay(Wrong):
    def copy_inside(
        self,
        source: Reservation,
        source_offset: int,
        destination: Reservation,
        destination_offset: int,
        nbytes: int,
        *,
        stream: object = None,
    ) -> None:
        super().copy_inside(
            destination,
            destination_offset,
            source,
            source_offset,
            nbytes,
            stream=stream,
        )


class FillsOneByteMore(Wrong):
    def fill(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        value: int,
        *,
        stream: object = None,
    ) -> None:
        more = min(nbytes + 1, reservation.nbytes - offset)
        super().fill(reservation, offset, more, value, stream=stream)


class ShiftsItsViews(Wrong):
    def view(self, reservation: Reservation, offset: int, nbytes: int) -> FakeView:
        return super().view(reservation, offset // 4096 * 4096, nbytes)


class HasNoViews(Wrong):
    def view(self, reservation: Reservation, offset: int, nbytes: int) -> None:  # type: ignore[override]  # the mistake
        return None


class HasNoAddress(Wrong):
    can = DISTANT | Capability.MANAGED


class _LastFirst(FakeStream):
    def pump(self, count: int | None = None) -> int:
        self._work.reverse()
        done = super().pump(count)
        self._work.reverse()
        return done


class WorksBackwards(Wrong):
    def make_stream(self) -> FakeStream:
        return _LastFirst(self)


class DoesNotWait(Wrong):
    def wait(self, stream: object, event: object) -> None:
        """Do nothing."""


class RecordsTooEarly(Wrong):
    def record(self, stream: object) -> FakeEvent:
        event = super().record(stream)
        return event._replace(position=max(event.position - 1, 0))


class ReleasesUnderQueuedWork(Wrong):
    def finish(self) -> None:
        pass


class ForgetsThatItIsDone(Wrong):
    def is_done(self, event: object) -> bool:
        return False


class HasOneKeyForAll(Wrong):
    def stream_key(self, stream: object) -> int:
        return 0


class HasANewKeyEachTime(Wrong):
    def stream_key(self, stream: object) -> object:
        self._stream(stream)
        return object()


class SharesItsMemory(Wrong):
    """It claims to be simulated, and all objects count what they take together."""

    _taken: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        super().__init__()
        self._committed = self._taken


class IsNotZeroWhenNew(Wrong):
    def _spoil(self, start: int, nbytes: int) -> None:
        self.capabilities &= ~Capability.ZERO_WHEN_NEW
        super()._spoil(start, nbytes)
        self.capabilities |= Capability.ZERO_WHEN_NEW


class CopiesFromTheStart(Wrong):
    def copy_from_device(
        self,
        backend: Backend,
        source: Reservation,
        source_offset: int,
        destination: Reservation,
        destination_offset: int,
        nbytes: int,
        *,
        stream: object = None,
    ) -> None:
        super().copy_from_device(
            backend, source, 0, destination, destination_offset, nbytes, stream=stream
        )


class ReachesAll(Wrong):
    def reaches(self, backend: Backend) -> bool:
        return True


class FinishesNothing(Wrong):
    def staging(self, host: memoryview, stream: object) -> Staging:
        return Staging("cpu", stream or self.make_stream(), lambda: None)


class AlwaysCaptures(Wrong):
    def is_capturing(self, stream: object) -> bool:
        return True


class HasAnOddPageForALimit(Wrong):
    def page_nbytes_for(self, limit_nbytes: int) -> int:
        return max(limit_nbytes // 1000, self.page_nbytes)


class GuardsWhatItCommits(Wrong):
    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        if not self.has_guard_pages:
            super().commit(reservation, offset, nbytes)


class SettlesNothing(Wrong):
    def settle(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        *,
        committed_nbytes: int,
    ) -> None:
        """Do nothing."""


class ForgetsTheOwner(Wrong):
    def buffer_over(self, address: int, nbytes: int, owner: object) -> FakeExport:
        return super().buffer_over(address, nbytes, None)


class TellsTheSameHandle(Wrong):
    def stream_handle(self, stream: object) -> int:
        return 0 if stream is None else 7
