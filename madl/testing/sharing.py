"""Conformance tests of SHARE, DLPACK and CUDA_ARRAY: memory used by others in place."""

import gc
import pickle
import weakref
from multiprocessing.reduction import ForkingPickler
from unittest import SkipTest

from madl.backends.protocol import Capability
from madl.errors import AttachError, MissingCapabilityError
from madl.testing.case import BackendCase
from madl.testing.workbench import pattern

_NO_ORDER = -1  # DLPack's stream for an importer that sees to the order itself


class ShareTests(BackendCase):
    """What ``Capability.SHARE`` promises, tried within this process."""

    def test_what_is_attached_is_the_memory_itself(self) -> None:
        with self.content_workbench(Capability.SHARE) as bench:
            nbytes = 2 * bench.unit
            owned = bench.usable(nbytes)
            attached = bench.attach(bench.backend.share(owned), 0, nbytes)
            for seed, (writes, reads) in enumerate(
                [(owned, attached), (attached, owned)]
            ):
                data = pattern(nbytes, seed)
                bench.write(writes, 0, data)
                bench.assert_holds(reads, 0, data, "written on the other side")

    def test_a_part_is_attached_from_where_it_starts(self) -> None:
        with self.content_workbench(Capability.SHARE) as bench:
            owned, data = bench.written(3 * bench.unit)
            shared = bench.backend.share(owned)
            attached = bench.attach(shared, bench.unit, bench.unit)
            expected = data[bench.unit : 2 * bench.unit]
            bench.assert_holds(attached, 0, expected, "the middle third")

    def test_what_is_attached_is_shared_on(self) -> None:
        with self.content_workbench(Capability.SHARE) as bench:
            owned, data = bench.written(3 * bench.unit)
            tail = bench.attach(bench.backend.share(owned), bench.unit, 2 * bench.unit)
            end = bench.attach(bench.backend.share(tail), bench.unit, bench.unit)
            expected = data[2 * bench.unit :]
            bench.assert_holds(end, 0, expected, "the last third, by way of two")

    def test_what_was_shared_outlives_its_owner(self) -> None:
        with self.content_workbench(Capability.SHARE) as bench:
            owned, data = bench.written(bench.unit)
            shared = bench.backend.share(owned)
            bench.release(owned)
            attached = bench.attach(shared, 0, bench.unit)
            del shared
            what = "attached after the owner had released it"
            bench.assert_holds(attached, 0, data, what)

    def test_what_is_attached_is_released_alone(self) -> None:
        with self.content_workbench(Capability.SHARE) as bench:
            owned, data = bench.written(bench.unit)
            shared = bench.backend.share(owned)
            bench.release(bench.attach(shared, 0, bench.unit))
            bench.assert_holds(owned, 0, data, "after an attachment was released")

    def test_multiprocessing_can_send_it(self) -> None:
        with self.content_workbench(Capability.SHARE) as bench:
            owned, data = bench.written(bench.unit)
            shared = bench.backend.share(owned)
            try:
                sent = bytes(ForkingPickler.dumps(shared))
            except Exception as error:
                raise AssertionError(f"it cannot be sent: {error}") from error
            attached = bench.attach(pickle.loads(sent), 0, bench.unit)
            bench.assert_holds(attached, 0, data, "sent and attached")

    def test_more_than_was_shared_is_not_attached(self) -> None:
        with self.content_workbench(Capability.SHARE) as bench:
            shared = bench.backend.share(bench.usable(bench.unit))
            try:
                bench.attach(shared, bench.unit, bench.unit)
            except AttachError:
                return
            raise AssertionError(
                f"{bench.unit} bytes at {bench.unit} were attached of memory that has "
                f"{bench.unit}"
            )


class _Owner:
    """What an export has to keep alive."""


class DlpackTests(BackendCase):
    """What ``Capability.DLPACK`` promises."""

    def test_a_capsule_keeps_the_owner_of_its_memory(self) -> None:
        with self.workbench(Capability.DLPACK) as bench:
            address = bench.usable(bench.unit).address
            assert address is not None, "DLPACK is claimed, but there is no address"
            owner = _Owner()
            try:
                exported = bench.backend.buffer_over(address, bench.unit, owner)
            except MissingCapabilityError as error:
                raise SkipTest(str(error)) from error
            kept = weakref.ref(owner)
            del owner
            kind, index = exported.__dlpack_device__()
            assert kind > 0 <= index, f"DLPack has no device {kind}, {index}"
            capsule = exported.__dlpack__(stream=_NO_ORDER)
            del exported
            assert kept() is not None, "a capsule must keep the owner of its memory"
            del capsule
            gc.collect()
            assert kept() is None, "the owner must be free when the capsule is gone"


class CudaArrayTests(BackendCase):
    """What ``Capability.CUDA_ARRAY`` promises."""

    def test_a_stream_has_a_handle_of_its_own(self) -> None:
        with self.workbench(Capability.CUDA_ARRAY) as bench:
            streams = (None, *(self.make_stream(bench.backend) for _ in range(2)))
            handles = [bench.backend.stream_handle(stream) for stream in streams]
            assert len({*handles, 0}) == 4, f"handles must differ, none 0: {handles}"
