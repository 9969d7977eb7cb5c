"""Conformance tests of HUGE_PAGES, HANDLE_PAGES, GUARD_PAGES, PREFAULT and NUMA.

Each is a choice for reservations from now on.
"""

from unittest import SkipTest

from madl.backends.protocol import Capability
from madl.errors import MissingCapabilityError
from madl.testing.case import BackendCase
from madl.testing.committing import use
from madl.testing.workbench import Workbench

_NO_NODE = 1 << 20


class HugePagesTests(BackendCase):
    """What ``Capability.HUGE_PAGES`` promises."""

    def test_pages_are_chosen_or_refused(self) -> None:
        with self.workbench(Capability.HUGE_PAGES) as bench:
            page = bench.backend.page_nbytes
            for huge in (None, False, True, "explicit", None):
                try:
                    bench.backend.choose_pages(page, huge=huge)
                except MissingCapabilityError:
                    assert huge, f"choose_pages(huge={huge}) must not be refused"
                _commit_pages(bench, page)


class HandlePagesTests(BackendCase):
    """What ``Capability.HANDLE_PAGES`` promises."""

    def test_a_page_suits_a_limit(self) -> None:
        with self.workbench(Capability.HANDLE_PAGES) as bench:
            before = bench.granule
            for limit in (bench.granule, 1 << 24, 1 << 34, 1 << 44):
                page = bench.backend.page_nbytes_for(limit)
                is_suited = page >= before and page % bench.granule == 0
                assert is_suited, (
                    f"a page for a limit of {limit} must be a multiple of the "
                    f"granularity {bench.granule}, not below {before}, got {page}"
                )
                before = page
            page = bench.backend.page_nbytes_for(bench.granule)
            bench.backend.choose_pages(page, huge=None)
            _commit_pages(bench, page)


class GuardPagesTests(BackendCase):
    """What ``Capability.GUARD_PAGES`` promises of the memory between the guards."""

    def test_memory_between_guard_pages_is_as_any_other(self) -> None:
        with self.workbench(Capability.GUARD_PAGES) as bench:
            try:
                bench.backend.choose_guard_pages()
            except MissingCapabilityError as error:
                raise SkipTest(str(error)) from error
            for _ in range(2):
                _take_and_use(bench)


class PrefaultTests(BackendCase):
    """What ``Capability.PREFAULT`` promises."""

    def test_prefaulted_memory_is_as_any_other(self) -> None:
        with self.workbench(Capability.PREFAULT) as bench:
            for prefault in (True, False, True):
                bench.backend.choose_prefault(prefault=prefault)
                _take_and_use(bench)


class NumaTests(BackendCase):
    """What ``Capability.NUMA`` promises."""

    def test_a_node_that_there_is_not_is_refused(self) -> None:
        with self.workbench(Capability.NUMA) as bench:
            try:
                bench.backend.choose_node(_NO_NODE)
            except MissingCapabilityError:
                _take_and_use(bench)
                return
            raise AssertionError(f"choose_node({_NO_NODE}) must be refused")

    def test_a_node_is_chosen_or_refused(self) -> None:
        with self.workbench(Capability.NUMA) as bench:
            for node in (None, 0, None):
                try:
                    bench.backend.choose_node(node)
                except MissingCapabilityError:
                    assert node == 0, "choose_node(None) must not be refused"
                _take_and_use(bench)


def _commit_pages(bench: Workbench, page: int) -> None:
    """Commit two pages of four, use them, and give back one, then all."""
    reservation = bench.reserve(4 * page)
    bench.commit(reservation, page, 2 * page)
    use(bench, reservation, page, 2 * page)
    bench.backend.decommit(reservation, 2 * page, page)
    bench.release(reservation)


def _take_and_use(bench: Workbench) -> None:
    """Take memory, use its ends, and give it back in both ways."""
    unit = bench.unit
    reservation = bench.usable(2 * unit)
    use(bench, reservation, 0, 2 * unit)
    if bench.has(Capability.COMMIT):
        bench.backend.decommit(reservation, unit, unit)
    bench.release(reservation)
