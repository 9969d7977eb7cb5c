"""CUDA virtual memory management: reserved addresses, and pages mapped on demand.

Each page is a handle of the driver, mapped at one address. A remap maps it at the new
address before it unmaps the old one, so that a call that fails in between is undone.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from madl.backends.cuda.calls import DEINITIALIZED, SUCCESS
from madl.backends.cuda.device import CudaDevice
from madl.errors import MadlError

_PINNED, _ON_DEVICE, _READ_WRITE = 1, 1, 3  # of the driver's interface
_ADDRESS_SPACE = "of address space, not of device memory"


class _Page(NamedTuple):
    handle: Any
    nbytes: int


class CudaPages:
    """What the driver does for reservations whose pages are committed on demand."""

    def __init__(self, device: CudaDevice) -> None:
        self.calls = device.calls
        driver = self.calls.driver
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType(_PINNED)
        self._access = driver.CUmemAccessDesc()
        self._access.flags = driver.CUmemAccess_flags(_READ_WRITE)
        for place in (self._properties.location, self._access.location):
            place.type = driver.CUmemLocationType(_ON_DEVICE)
            place.id = device.index
        flags = driver.CUmemAllocationGranularity_flags
        self.granularity = int(
            self.calls.call(
                "ask for the granularity",
                "cuMemGetAllocationGranularity",
                self._properties,
                flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )
        )
        self.kept_nbytes = 0
        """Of handles that the driver did not take back."""

    def pointers(self) -> dict[str, int]:
        """Return where C code finds the properties and the access of a page."""
        properties, access = self._properties.getPtr(), self._access.getPtr()
        return {"properties": int(properties), "access": int(access)}

    def reserve(self, nbytes: int, page_nbytes: int) -> "PagedReservation":
        """Take addresses whose memory will be of pages of one size."""
        address = self.calls.take(
            *("reserve addresses", "cuMemAddressReserve"),
            *(nbytes, self.granularity, 0, 0),
            nbytes=nbytes,
            of=_ADDRESS_SPACE,
        )
        return PagedReservation(self, int(address), nbytes, page_nbytes)

    def create(self, nbytes: int, wanted_nbytes: int) -> Any:  # noqa: ANN401  # a handle of cuda-python
        """Return the handle of new memory, a part of what is wanted."""
        return self.calls.take(
            "commit", "cuMemCreate", nbytes, self._properties, 0, nbytes=wanted_nbytes
        )

    def map(self, address: int, page: _Page, wanted_nbytes: int) -> None:
        """Map a page at an address, without access: ``allow`` comes next."""
        self.calls.take(
            *("map a page", "cuMemMap", address, page.nbytes, 0, page.handle, 0),
            nbytes=wanted_nbytes,
        )

    def allow(self, address: int, nbytes: int) -> None:
        """Let the device use pages that are mapped."""
        self.calls.take(
            *("allow access", "cuMemSetAccess", address, nbytes, [self._access], 1),
            nbytes=nbytes,
        )

    def unmap_again(self, address: int, page: _Page) -> None:
        """Undo a ``map``, also one that failed; never raise."""
        self.calls.quietly("cuMemUnmap", address, page.nbytes)

    def map_again(self, address: int, page: _Page) -> None:
        """Undo an unmap, also one that failed; never raise."""
        with contextlib.suppress(MadlError):
            self.map(address, page, page.nbytes)
            self.allow(address, page.nbytes)

    def free(self, page: _Page) -> None:
        """Give the memory of a page back; never raise.

        It is mapped nowhere any more, so this cannot be undone. A page that the driver
        refuses is counted and not released again: the handle may be reused by then.
        """
        status = self.calls.quietly("cuMemRelease", page.handle)
        if status not in (SUCCESS, DEINITIALIZED):
            self.kept_nbytes += page.nbytes


class PagedReservation:
    """Addresses, and the pages mapped there."""

    is_going = False
    """Whether the driver has been asked to take the addresses back."""

    def __init__(
        self, pages: CudaPages, address: int, nbytes: int, page_nbytes: int
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        self.page_nbytes = page_nbytes
        self._do = pages
        self._pages: dict[int, _Page] = {}  # by their offsets

    def commit(self, offset: int, nbytes: int) -> None:
        """Map new pages over a range, or change nothing."""
        made: dict[int, _Page] = {}
        with contextlib.ExitStack() as undo:
            for start, page_nbytes in self._cells(offset, nbytes):
                page = _Page(self._do.create(page_nbytes, nbytes), page_nbytes)
                undo.callback(self._do.free, page)
                undo.callback(self._do.unmap_again, self.address + start, page)
                self._do.map(self.address + start, page, nbytes)
                made[start] = page
            self._do.allow(self.address + offset, nbytes)
            undo.pop_all()
        self._pages.update(made)

    def decommit(self, offset: int, nbytes: int) -> None:
        """Give the pages of a range back, or change nothing."""
        self._let_go(self._under(offset, nbytes))

    def settle(self, offset: int, nbytes: int) -> None:
        """Give back the pages that start in a range, be it all of it or less."""
        stop = offset + nbytes
        found = {at: page for at, page in self._pages.items() if offset <= at < stop}
        self._let_go(found)

    def remap(
        self, source: int, destination: int, nbytes: int, into: "PagedReservation"
    ) -> None:
        """Move the pages of a range, or change nothing."""
        moving = self._under(source, nbytes)
        there = {start - source + destination: page for start, page in moving.items()}
        with contextlib.ExitStack() as undo:
            for start, page in there.items():
                undo.callback(self._do.unmap_again, into.address + start, page)
                self._do.map(into.address + start, page, nbytes)
            self._do.allow(into.address + destination, nbytes)
            self._unmap(moving)
            undo.pop_all()
        for start in moving:
            del self._pages[start]
        into._pages.update(there)

    def release(self) -> None:
        """Give pages and addresses back, or change nothing."""
        self._let_go(dict(self._pages), and_addresses=True)

    def _let_go(self, pages: dict[int, _Page], *, and_addresses: bool = False) -> None:
        # Handles are freed after the last call that can fail: an unmap is undone by
        # mapping the same handle again.
        self._unmap(pages)
        if and_addresses:
            self.is_going = True
            try:
                self._do.calls.call(
                    "release addresses", "cuMemAddressFree", self.address, self.nbytes
                )
            except MadlError:  # not after a Ctrl-C: they may be reserved anew
                for start, page in pages.items():
                    self._do.map_again(self.address + start, page)
                raise
        for start, page in pages.items():
            del self._pages[start]
            self._do.free(page)

    def _unmap(self, pages: dict[int, _Page]) -> None:
        with contextlib.ExitStack() as undo:
            for start, page in pages.items():
                undo.callback(self._do.map_again, self.address + start, page)
                self._do.calls.call(
                    "unmap a page", "cuMemUnmap", self.address + start, page.nbytes
                )
            undo.pop_all()

    def _cells(self, offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Yield offset and size of each page that a range will have."""
        stop = offset + nbytes
        while offset < stop:
            end = min((offset // self.page_nbytes + 1) * self.page_nbytes, stop)
            yield offset, end - offset
            offset = end

    def _under(self, offset: int, nbytes: int) -> dict[int, _Page]:
        """Return the pages of a range, all of which is committed."""
        found: dict[int, _Page] = {}
        at, stop = offset, offset + nbytes
        while at < stop:
            page = self._pages.get(at)
            if page is None or at + page.nbytes > stop:
                raise ValueError(
                    f"[{offset}, {stop}) must be whole pages that are committed; none "
                    f"of {self.page_nbytes} bytes starts at {at} and ends inside"
                )
            found[at] = page
            at += page.nbytes
        return found
