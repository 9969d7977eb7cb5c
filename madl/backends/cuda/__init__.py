"""CUDA memory: ``"cuda:0"`` of the device, pinned and managed memory of the host.

``"cuda:0"`` is memory of the device. ``"cuda_pinned:0"`` is host memory that the
device copies from and to directly, and ``"cuda_managed:0"`` has one address for both:
the CPU can reach these, so they are devices of their own. How the memory of the device
is taken from the driver is an option of the backend, since it is the same memory.
"""

from collections.abc import Iterable
from typing import cast

from madl.backends.cuda.calls import (
    KINDS,
    OLDEST_VERSION,
    CudaCalls,
    device_count,
)
from madl.backends.cuda.copies import WORK, CudaWork
from madl.backends.cuda.device import (
    CONCURRENT_MANAGED_ACCESS,
    MANAGED_MEMORY,
    MEMORY_POOLS,
    VIRTUAL_MEMORY,
    CudaDevice,
)
from madl.backends.cuda.interop import CudaExchange
from madl.backends.cuda.interop import wrap_array as wrap_array
from madl.backends.cuda.pages import CudaPages, PagedReservation
from madl.backends.cuda.segments import SORTS, SegmentReservation
from madl.backends.cuda.streams import NO_TIMING
from madl.backends.kept import foreign
from madl.backends.protocol import Capability, MemoryInfo, Reservation
from madl.errors import BackendNotFoundError, MadlError, MissingCapabilityError
from madl.sizes import align_up, format_nbytes, parse_nbytes

PAGE_NBYTES = 2 << 20

MOST_PAGES_IN_LIMIT = 1000
"""Pages grow until a limit holds so few: each one is a handle of the driver."""

SEGMENT_ALIGNMENT = 512
"""What the driver aligns memory in one piece to."""

MEMORIES = ("pages", *SORTS)


class CudaBackend(CudaWork, CudaExchange):
    """Memory of a CUDA device, or host memory made for one.

    Args:
        index: The device's number, as CUDA_VISIBLE_DEVICES leaves them.
        memory: How it is taken. ``"pages"`` reserves addresses and commits them page
            by page; ``"segments"`` is ``cuMemAlloc`` and ``"async"`` is
            ``cuMemAllocAsync``, which shares with others who use the driver's own
            pool. ``"pinned"`` and ``"managed"`` are host memory and managed memory.
            None for pages, or segments where the driver cannot do pages.
        page_nbytes: The page size that a pool should use; 2 MiB by default.

    Raises:
        BackendNotFoundError: cuda-python, the driver or the device is missing.
        MissingCapabilityError: The device has no such memory.
        ForkError: The parent of this process has opened a device.
    """

    def __init__(
        self,
        index: int = 0,
        *,
        memory: str | None = None,
        page_nbytes: int | None = None,
    ) -> None:
        if memory is not None and memory not in MEMORIES:
            raise ValueError(
                f"memory must be one of {', '.join(MEMORIES)}, got {memory!r}"
            )
        kind = f"cuda_{memory}" if memory in ("pinned", "managed") else "cuda"
        self.device = f"{kind}:{index}"
        super().__init__(CudaDevice(self.device, index))
        self.memory = self._choose(memory)
        self._is_host = self.memory == "pinned"
        self._pages = CudaPages(self._device) if self.memory == "pages" else None
        self.granularity = self.alignment = (
            self._pages.granularity if self._pages else SEGMENT_ALIGNMENT
        )
        self.page_nbytes = self._check_page(
            align_up(PAGE_NBYTES, self.granularity)
            if page_nbytes is None
            else page_nbytes
        )
        self._handle_nbytes = self.granularity
        self.capabilities = self._find_capabilities()
        self._reservations: dict[int, PagedReservation | SegmentReservation] = {}

    def _choose(self, memory: str | None) -> str:
        if memory is None:
            return "pages" if self._device.attribute(VIRTUAL_MEMORY) else "segments"
        segments, pinned = "memory='segments'", f"cuda_pinned:{self._device.index}"
        needed = {
            "pages": (VIRTUAL_MEMORY, "virtual memory management", segments),
            "async": (MEMORY_POOLS, "stream-ordered allocation", segments),
            "managed": (MANAGED_MEMORY, "managed memory", pinned),
        }
        if memory in needed:
            attribute, capability, alternative = needed[memory]
            if not self._device.attribute(attribute):
                raise MissingCapabilityError(self.device, capability, alternative)
        return memory

    def _find_capabilities(self) -> Capability:
        found = WORK | Capability.DLPACK | Capability.CUDA_ARRAY | Capability.DESCRIBE
        if self.memory == "pages":
            found |= Capability.COMMIT | Capability.REMAP
            found |= Capability.HANDLE_PAGES | Capability.SETTLE
        if self.memory == "pinned":
            found |= Capability.PINNED | Capability.HOST_ACCESS
        if self.memory == "managed":
            found |= Capability.MANAGED
            # Without it, a CPU access while any kernel runs is a fault, and madl does
            # not know what runs.
            if self._device.attribute(CONCURRENT_MANAGED_ACCESS):
                found |= Capability.HOST_ACCESS
        return found

    def page_nbytes_for(self, limit_nbytes: int) -> int:
        """Return the page size that suits a pool with a limit."""
        fewer = align_up(limit_nbytes // MOST_PAGES_IN_LIMIT, self.granularity)
        return max(self.page_nbytes, fewer)

    def choose_pages(self, page_nbytes: int, *, huge: bool | None = None) -> None:
        """Say in which pages reservations from now on will be committed.

        Each is one handle then. Until this is called, a handle is one granule, so
        that any granules can be committed and decommitted.

        Args:
            page_nbytes: Commits, decommits and remaps will be of whole pages, but
                for the last one of a range that is only ever used whole.
            huge: None; the driver chooses.

        Raises:
            MissingCapabilityError: ``huge`` is not None.
        """
        if huge is not None:
            raise MissingCapabilityError(
                self.device, "huge pages", "leave out huge_pages="
            )
        self._handle_nbytes = self._check_page(page_nbytes)

    def reserve(self, nbytes: int) -> Reservation:
        """Take memory, or addresses where the memory is committed in pages."""
        with self._device.taking():
            made = (
                self._pages.reserve(nbytes, self._handle_nbytes)
                if self._pages
                else SegmentReservation(self._device, self.memory, nbytes)
            )
        self._reservations[made.address] = made
        return Reservation(made.address, nbytes, made.address)

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back to the device, committed or not."""
        found = self._find(reservation)
        with self._device.calls.giving_back(), self._device.taking():
            # Forgotten before it is released: another thread can be given the same
            # address as soon as it is free, and its entry would be deleted.
            del self._reservations[found.address]
            found.is_going = False
            try:
                with self._device.calls.giving_back():
                    # Drivers have been seen to wait in cuMemFree and cuMemFreeHost;
                    # that they do is promised nowhere, and queued work may still
                    # read what is released.
                    self._device.calls.call("release", "cuCtxSynchronize")
                    found.release()
            except BaseException as error:
                # After a Ctrl-C in the driver call it may be free, and its address
                # another reservation's: it is put back only if it is surely held.
                if isinstance(error, MadlError) or not found.is_going:
                    self._reservations[found.address] = found
                raise

    def commit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Make ``[offset, offset + nbytes)`` usable by the device."""
        paged = self._paged(reservation)
        with self._device.taking():
            paged.commit(offset, nbytes)

    def decommit(self, reservation: Reservation, offset: int, nbytes: int) -> None:
        """Give the memory of a range back; no queued work may still use it."""
        paged = self._paged(reservation)
        with self._device.calls.giving_back(), self._device.taking():
            paged.decommit(offset, nbytes)

    def settle(
        self,
        reservation: Reservation,
        offset: int,
        nbytes: int,
        *,
        committed_nbytes: int,
    ) -> None:
        """Give back what a range has, all of it or less."""
        paged = self._paged(reservation)
        with self._device.calls.giving_back(), self._device.taking():
            paged.settle(offset, nbytes)

    def remap(
        self,
        reservation: Reservation,
        source: int,
        destination: int,
        nbytes: int,
        *,
        into: Reservation | None = None,
    ) -> None:
        """Move the memory behind a range; no queued work may still use it there."""
        paged = self._paged(reservation)
        target = paged if into is None else self._paged(into)
        with self._device.taking():
            paged.remap(source, destination, nbytes, target)

    def memory_info(self) -> MemoryInfo:
        """Return the device's memory; for pinned memory, the host's."""
        if self.memory == "pinned":
            from madl.backends.cpu import CpuBackend

            return CpuBackend().memory_info()
        return self._device.memory_info()

    def describe(self) -> dict[str, str]:
        """Return what the device is and what was chosen, in words."""
        facts = self._device.describe()
        if self._pages is None:
            facts["taken by"] = SORTS[self.memory].take
            return facts
        facts["taken by"] = "cuMemCreate, in pages"
        facts["page"] = format_nbytes(self.page_nbytes)
        if self._pages.kept_nbytes:
            facts["not taken back"] = format_nbytes(self._pages.kept_nbytes)
        return facts

    def driver_parts(
        self, functions: Iterable[str]
    ) -> tuple[list[object], dict[str, int]]:
        """Return the driver's functions by address, and what their calls need.

        For C code that commits pages of the device without Python.
        """
        assert self._pages is not None, "the backend was made with memory='pages'"
        call, version = self._device.calls.call, OLDEST_VERSION
        found = [
            call(f"find {name}", "cuGetProcAddress", name.encode(), version, 0)[0]
            for name in functions
        ]
        with self._device.current():
            event = call("make an event", "cuEventCreate", NO_TIMING)
        handles = {"context": int(self._device.context), "event": int(event)}
        return found, handles | self._pages.pointers()

    def _at(self, reservation: Reservation, offset: int, nbytes: int) -> int:
        found = self._find(reservation)
        if not 0 <= offset <= offset + nbytes <= found.nbytes:
            raise ValueError(
                f"offset {offset} and nbytes {nbytes} must lie inside the reservation "
                f"of {found.nbytes} bytes"
            )
        return found.address + offset

    def _find(self, reservation: Reservation) -> PagedReservation | SegmentReservation:
        found = self._reservations.get(cast("int", reservation.address))
        if found is None:
            raise foreign(self.device, reservation)
        return found

    def _paged(self, reservation: Reservation) -> PagedReservation:
        found = self._find(reservation)
        if isinstance(found, PagedReservation):
            return found
        raise MissingCapabilityError(self.device, "COMMIT", "memory='pages'")

    def _check_page(self, page_nbytes: int) -> int:
        checked = parse_nbytes(page_nbytes, name="page_nbytes")
        if checked == 0 or checked % self.granularity:
            raise ValueError(
                f"page_nbytes must be a positive multiple of {self.granularity} on "
                f"{self.device}, got {checked}"
            )
        return checked


def madl_devices() -> list[str]:
    """Return the CUDA devices, and the host memory made for them.

    It initializes the driver, so children of this process have to be spawned for
    CUDA; it makes no context.
    """
    try:
        count = device_count(CudaCalls("cuda:0", 0))
    except BackendNotFoundError:
        return []
    found = []
    for kind in KINDS:
        for index in range(count):
            device = CudaDevice(f"{kind}:{index}", index)
            if kind != "cuda_managed" or device.attribute(MANAGED_MEMORY):
                found.append(device.calls.device)
    return found


def madl_open(device: str) -> CudaBackend | None:
    """Return a backend for a device of these kinds, else None."""
    kind, _, index = device.partition(":")
    if kind not in KINDS:
        return None
    _, _, memory = kind.partition("_")
    return CudaBackend(int(index or 0), memory=memory or None)
