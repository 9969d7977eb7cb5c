"""Conformance tests of COPY, PEER_COPY and STAGED_COPY."""

from unittest import SkipTest

from madl.backends import registry
from madl.backends.protocol import Capability
from madl.backends.sim import SimBackend
from madl.testing.case import BackendCase
from madl.testing.content import ODD_NBYTES, ODD_OFFSET
from madl.testing.workbench import assert_bytes, pattern


class CopyTests(BackendCase):
    """What ``Capability.COPY`` promises without a stream."""

    def test_bytes_go_to_the_device_and_back(self) -> None:
        with self.workbench(Capability.COPY) as bench:
            nbytes = 3 * bench.unit
            reservation = bench.usable(nbytes)
            data = pattern(nbytes, 1)
            bench.backend.copy_from_host(reservation, 0, memoryview(data))
            found = bench.copied(reservation, 0, nbytes)
            assert_bytes(found, data, "copied from and to the host")

    def test_a_copy_changes_its_own_bytes_only(self) -> None:
        with self.workbench(Capability.COPY) as bench:
            nbytes = 2 * bench.unit
            reservation = bench.usable(nbytes)
            expected = bytearray(pattern(nbytes, 1))
            bench.backend.copy_from_host(reservation, 0, memoryview(expected))
            data = pattern(ODD_NBYTES, 2)
            stop = ODD_OFFSET + ODD_NBYTES
            bench.backend.copy_from_host(reservation, ODD_OFFSET, memoryview(data))
            expected[ODD_OFFSET:stop] = data
            found = bench.copied(reservation, 0, nbytes)
            assert_bytes(found, expected, "after a copy into the middle")
            part = bench.copied(reservation, ODD_OFFSET, ODD_NBYTES)
            assert_bytes(part, data, "copied out of the middle")

    def test_a_copy_is_complete_on_return(self) -> None:
        with self.workbench(Capability.COPY) as bench:
            nbytes = 16 * bench.unit
            reservation = bench.usable(nbytes)
            data = pattern(nbytes, 1)
            source = bytearray(data)
            bench.backend.copy_from_host(reservation, 0, memoryview(source))
            source[:] = bytes(nbytes)  # it must not be looked at any more
            found = bench.copied(reservation, 0, nbytes)
            assert_bytes(found, data, "without a stream, from changed memory")

    def test_bytes_move_inside_the_device(self) -> None:
        with self.workbench(Capability.COPY) as bench:
            nbytes = 2 * bench.unit
            source, data = bench.written(nbytes)
            target = bench.usable(nbytes)
            bench.write(target, 0, bytes(nbytes))
            bench.backend.copy_inside(source, 5, target, ODD_OFFSET, ODD_NBYTES)
            bench.backend.copy_inside(target, ODD_OFFSET, target, 3, 512)
            expected = bytearray(nbytes)
            expected[ODD_OFFSET : ODD_OFFSET + ODD_NBYTES] = data[5 : 5 + ODD_NBYTES]
            expected[3:515] = data[5:517]
            bench.assert_holds(target, 0, expected, "copied inside")
            bench.assert_holds(source, 0, data, "the source of a copy")


class PeerCopyTests(BackendCase):
    """What ``Capability.PEER_COPY`` promises, tried between two backends."""

    def test_bytes_come_from_another_backend(self) -> None:
        with self.workbench(Capability.PEER_COPY) as bench, self.workbench() as other:
            if not bench.backend.reaches(other.backend):
                raise SkipTest("it does not reach another backend of its own kind")
            nbytes = 2 * bench.unit
            source, data = other.written(nbytes)
            target, expected = bench.usable(nbytes), bytearray(pattern(nbytes, 2))
            bench.write(target, 0, bytes(expected))
            bench.backend.copy_from_device(
                other.backend, source, 5, target, ODD_OFFSET, ODD_NBYTES
            )
            expected[ODD_OFFSET : ODD_OFFSET + ODD_NBYTES] = data[5 : 5 + ODD_NBYTES]
            bench.assert_holds(target, 0, expected, "copied from another backend")

    def test_it_says_which_backends_it_reaches(self) -> None:
        with self.workbench(Capability.PEER_COPY) as bench:
            reached = bench.backend.reaches(SimBackend())
            assert reached is False, f"reaches() must be False of 'sim': {reached!r}"
            shares = bench.backend.shares_streams(bench.backend)
            assert shares is True, f"its streams run on itself, got {shares!r}"


class StagedCopyTests(BackendCase):
    """What ``Capability.STAGED_COPY`` promises."""

    def test_what_is_staged_has_arrived_when_it_is_finished(self) -> None:
        with self.content_workbench(Capability.STAGED_COPY) as bench:
            data = pattern(bench.unit, 1)
            reservation, host = bench.usable(bench.unit), memoryview(data)
            staged = bench.backend.staging(host, None)
            if staged is None:
                raise SkipTest("it copies pageable memory as it is")
            registry.open_device(staged.device)
            bench.backend.copy_from_host(reservation, 0, host, stream=staged.stream)
            staged.finish()
            bench.assert_holds(reservation, 0, data, "after finish()")
