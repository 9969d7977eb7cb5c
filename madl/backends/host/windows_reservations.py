"""Reservations of Windows: of OS pages, and of large pages where they were granted.

Windows moves no memory between addresses: what is recycled is given back and taken
anew, so that it reads as zero and is faulted in again.
"""

from bisect import bisect_left
from contextlib import ExitStack
from ctypes import Array, addressof, memset

from madl.backends.host import HostReservation
from madl.backends.host import windows_calls as windows
from madl.backends.host.windows_calls import WindowsCalls
from madl.errors import MadlError
from madl.sizes import ADDRESS_SPACE_NBYTES

_LARGE_COMMIT = (
    windows.MEM_RESERVE
    | windows.MEM_COMMIT
    | windows.MEM_REPLACE_PLACEHOLDER
    | windows.MEM_LARGE_PAGES
)
_TO_PLACEHOLDER = windows.MEM_RELEASE | windows.MEM_PRESERVE_PLACEHOLDER


class WindowsReservation(HostReservation):
    """A range of addresses."""

    def __init__(self, calls: WindowsCalls, address: int, nbytes: int) -> None:
        self._calls = calls
        self.address = address
        self.nbytes = nbytes

    def _free(self, offset: int, nbytes: int, kind: int, verb: str) -> None:
        if not self._calls.virtual_free(self.address + offset, nbytes, kind):
            raise self._calls.error("VirtualFree", verb, nbytes or self.nbytes)


class SmallReservation(WindowsReservation):
    """Address space that OS pages are committed in."""

    is_prefaulting = False

    def commit(self, offset: int, nbytes: int) -> None:
        """Make the addresses usable; the system promises memory or refuses now."""
        address = self.address + offset
        if not self._calls.virtual_alloc(
            address, nbytes, windows.MEM_COMMIT, windows.PAGE_READWRITE
        ):
            raise self._calls.error(
                "VirtualAlloc", "commit", nbytes, refusals=windows.OUT_OF_MEMORY
            )
        if self.is_prefaulting:
            # PrefetchVirtualMemory reads what is in a file; new memory is nowhere yet.
            memset(address, 0, nbytes)

    def decommit(self, offset: int, nbytes: int) -> None:
        """Give the memory back, and what was promised."""
        if nbytes == 0:  # which would be all of the reservation
            return
        with ExitStack() as undo:
            # For a Ctrl-C, after which it counts as committed still; else it does
            # nothing, since it is.
            undo.callback(self._commit_again, offset, nbytes)
            self._free(offset, nbytes, windows.MEM_DECOMMIT, "decommit")
            undo.pop_all()

    def _commit_again(self, offset: int, nbytes: int) -> None:
        self._calls.virtual_alloc(
            self.address + offset, nbytes, windows.MEM_COMMIT, windows.PAGE_READWRITE
        )

    def release(self) -> None:
        """Give the address space back, with what is committed in it."""
        self._free(0, 0, windows.MEM_RELEASE, "release")


class LargeReservation(WindowsReservation):
    """Address space of which each page is replaced by large OS pages of its own.

    Large pages cannot be committed inside a reservation, but they can take the place
    of a placeholder of just their size. So the reservation is cut into pieces, and
    the pieces between pages that were once committed stay cut.
    """

    def __init__(
        self,
        calls: WindowsCalls,
        address: int,
        nbytes: int,
        page_nbytes: int,
        node: int | None,
    ) -> None:
        super().__init__(calls, address, nbytes)
        self._page_nbytes = page_nbytes
        self._node = node
        self._starts = [0]  # offsets of all pieces, sorted

    def commit(self, offset: int, nbytes: int) -> None:
        """Take large pages, which stay in memory until they are given back."""
        with ExitStack() as undo:
            for page in range(offset, offset + nbytes, self._page_nbytes):
                self._commit_page(page, nbytes)
                undo.callback(self.decommit, page, self._page_nbytes)
            undo.pop_all()

    def decommit(self, offset: int, nbytes: int) -> None:
        """Give the memory back, or change nothing; placeholders are left there."""
        with ExitStack() as undo:
            for page in range(offset, offset + nbytes, self._page_nbytes):
                self._free(page, self._page_nbytes, _TO_PLACEHOLDER, "decommit")
                undo.callback(self._commit_page, page, nbytes)
            undo.pop_all()

    def release(self) -> None:
        """Give all pieces back."""
        while self._starts:
            self._free(self._starts[-1], 0, windows.MEM_RELEASE, "release")
            self._starts.pop()

    def _commit_page(self, page: int, asked_nbytes: int) -> None:
        self._cut(page)
        self._cut(page + self._page_nbytes)
        if not self._calls["VirtualAlloc2"](
            *(self._calls["GetCurrentProcess"](), self.address + page),
            *(self._page_nbytes, _LARGE_COMMIT, windows.PAGE_READWRITE),
            *_extended(self._node),
        ):
            raise self._calls.error(
                "VirtualAlloc2", "commit", asked_nbytes, refusals=windows.OUT_OF_MEMORY
            )

    def _cut(self, offset: int) -> None:
        """Let a piece start at an offset."""
        index = bisect_left(self._starts, offset)
        if offset in (self.nbytes, *self._starts[index : index + 1]):
            return
        start = self._starts[index - 1]
        self._free(start, offset - start, _TO_PLACEHOLDER, "split")
        self._starts.insert(index, offset)


def reserve_small(
    calls: WindowsCalls, nbytes: int, node: int | None = None
) -> SmallReservation:
    """Take address space for OS pages, which will be of a node while it has any."""
    how = 0, _passable(nbytes), windows.MEM_RESERVE, windows.PAGE_NOACCESS
    if node is None:
        function, address = "VirtualAlloc", calls.virtual_alloc(*how)
    else:
        function = "VirtualAllocExNuma"
        address = calls[function](calls["GetCurrentProcess"](), *how, node)
    if not address:
        raise _refusal(calls, function, nbytes)
    return SmallReservation(calls, address, nbytes)


def reserve_large(
    calls: WindowsCalls,
    nbytes: int,
    page_nbytes: int,
    alignment: int,
    node: int | None = None,
) -> LargeReservation:
    """Take address space for large pages, at a multiple of their size."""
    wanted = windows.AddressRequirements(Alignment=alignment)
    address = calls["VirtualAlloc2"](
        *(calls["GetCurrentProcess"](), 0, _passable(nbytes)),
        windows.MEM_RESERVE | windows.MEM_RESERVE_PLACEHOLDER,
        windows.PAGE_NOACCESS,
        *_extended(node, wanted),
    )
    if not address:
        raise _refusal(calls, "VirtualAlloc2", nbytes)
    return LargeReservation(calls, address, nbytes, page_nbytes, node)


def _extended(
    node: int | None, wanted: windows.AddressRequirements | None = None
) -> tuple[Array[windows.ExtendedParameter] | None, int]:
    """Return the last two arguments of VirtualAlloc2."""
    parameters = []
    if wanted is not None:
        kind = windows.MEM_EXTENDED_PARAMETER_ADDRESS_REQUIREMENTS
        parameters.append(windows.ExtendedParameter(kind, addressof(wanted)))
    if node is not None:
        kind = windows.MEM_EXTENDED_PARAMETER_NUMA_NODE
        parameters.append(windows.ExtendedParameter(kind, node))
    if not parameters:
        return None, 0
    return (windows.ExtendedParameter * len(parameters))(*parameters), len(parameters)


def _passable(nbytes: int) -> int:
    # ctypes passes a number beyond the address space on without its upper bits.
    return min(nbytes, ADDRESS_SPACE_NBYTES - 1)


def _refusal(calls: WindowsCalls, function: str, nbytes: int) -> MadlError:
    # More than a process has addresses is an invalid parameter, as is 0.
    too_large = {windows.ERROR_INVALID_PARAMETER} if nbytes else set()
    return calls.error(
        function, "reserve", nbytes, refusals=windows.OUT_OF_MEMORY | too_large
    )
