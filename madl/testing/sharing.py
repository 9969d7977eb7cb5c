"""Tests of SHARE: what is attached is the memory itself, and outlives its owner."""

import pickle
from multiprocessing.reduction import ForkingPickler

from madl.backends.protocol import Capability
from madl.errors import AttachError
from madl.testing.case import BackendCase
from madl.testing.workbench import Workbench, assert_bytes, pattern


class ShareTests(BackendCase):
    """What ``Capability.SHARE`` promises, tried within this process."""

    def _sharing(self) -> Workbench:
        self.content_workbench(Capability.SHARE)  # skips where bytes are not reached
        return self.workbench(Capability.SHARE)

    def test_what_is_attached_is_the_memory_itself(self) -> None:
        with self._sharing() as bench:
            nbytes = 2 * bench.unit
            owned = bench.usable(nbytes)
            attached = bench.attach(bench.backend.share(owned), 0, nbytes)
            for seed, (writes, reads) in enumerate(
                [(owned, attached), (attached, owned)]
            ):
                data = pattern(nbytes, seed)
                bench.write(writes, 0, data)
                found = bench.read(reads, 0, nbytes)
                assert_bytes(found, data, "written on the other side")

    def test_a_part_is_attached_from_where_it_starts(self) -> None:
        with self._sharing() as bench:
            owned, data = bench.written(3 * bench.unit)
            shared = bench.backend.share(owned)
            attached = bench.attach(shared, bench.unit, bench.unit)
            found = bench.read(attached, 0, bench.unit)
            assert_bytes(found, data[bench.unit :][: bench.unit], "the middle third")

    def test_what_is_attached_is_shared_on(self) -> None:
        with self._sharing() as bench:
            owned, data = bench.written(3 * bench.unit)
            tail = bench.attach(bench.backend.share(owned), bench.unit, 2 * bench.unit)
            end = bench.attach(bench.backend.share(tail), bench.unit, bench.unit)
            found = bench.read(end, 0, bench.unit)
            assert_bytes(found, data[2 * bench.unit :], "the last third, by way of two")

    def test_what_was_shared_outlives_its_owner(self) -> None:
        with self._sharing() as bench:
            owned, data = bench.written(bench.unit)
            shared = bench.backend.share(owned)
            bench.release(owned)
            attached = bench.attach(shared, 0, bench.unit)
            del shared
            found = bench.read(attached, 0, bench.unit)
            assert_bytes(found, data, "attached after the owner had released it")

    def test_what_is_attached_is_released_alone(self) -> None:
        with self._sharing() as bench:
            owned, data = bench.written(bench.unit)
            shared = bench.backend.share(owned)
            bench.release(bench.attach(shared, 0, bench.unit))
            found = bench.read(owned, 0, bench.unit)
            assert_bytes(found, data, "after an attachment was released")

    def test_multiprocessing_can_send_it(self) -> None:
        with self._sharing() as bench:
            owned, data = bench.written(bench.unit)
            shared = bench.backend.share(owned)
            try:
                sent = bytes(ForkingPickler.dumps(shared))
            except Exception as error:
                raise AssertionError(f"it cannot be sent: {error}") from error
            attached = bench.attach(pickle.loads(sent), 0, bench.unit)
            found = bench.read(attached, 0, bench.unit)
            assert_bytes(found, data, "sent and attached")

    def test_more_than_was_shared_is_not_attached(self) -> None:
        with self._sharing() as bench:
            shared = bench.backend.share(bench.usable(bench.unit))
            try:
                bench.attach(shared, bench.unit, bench.unit)
            except AttachError:
                return
            raise AssertionError(
                f"{bench.unit} bytes at {bench.unit} were attached of memory that has "
                f"{bench.unit}"
            )
