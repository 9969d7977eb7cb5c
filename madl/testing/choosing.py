"""Tests of PREFAULT and NUMA: what is chosen for reservations from now on."""

from madl.backends.protocol import Capability
from madl.errors import MissingCapabilityError
from madl.testing.case import BackendCase
from madl.testing.workbench import Workbench, assert_bytes, pattern

_NO_NODE = 1 << 20


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


def _take_and_use(bench: Workbench) -> None:
    """Take memory, use its last bytes, and give it back in both ways."""
    unit = bench.unit
    reservation = bench.usable(2 * unit)
    if bench.has_content:
        data = pattern(8, unit)
        bench.write(reservation, 2 * unit - 8, data)
        found = bench.read(reservation, 2 * unit - 8, 8)
        assert_bytes(found, data, "the end of what was chosen for")
    if bench.has(Capability.COMMIT):
        bench.backend.decommit(reservation, unit, unit)
    bench.release(reservation)
