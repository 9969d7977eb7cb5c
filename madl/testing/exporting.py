"""Conformance tests of DLPACK and CUDA_ARRAY: memory used by others in place."""

import gc
import weakref
from unittest import SkipTest

from madl.backends.protocol import Capability
from madl.errors import MissingCapabilityError
from madl.testing.case import BackendCase

_NO_ORDER = -1  # DLPack's stream for an importer that sees to the order itself


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
