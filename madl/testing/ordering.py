"""Conformance tests of STREAM_ORDERED and CAPTURE: queued work is done in order."""

from madl.backends.protocol import Capability
from madl.sizes import align_up
from madl.testing.case import BackendCase
from madl.testing.workbench import assert_bytes, pattern

_FILL_AND_COPY = (Capability.STREAM_ORDERED, Capability.FILL, Capability.COPY)
_WORK_NBYTES = 1 << 20  # takes a while, so that what does not wait is seen


class StreamTests(BackendCase):
    """What ``Capability.STREAM_ORDERED`` promises. Override ``make_stream``."""

    def test_one_stream_has_one_key(self) -> None:
        with self.workbench(Capability.STREAM_ORDERED) as bench:
            stream = self.make_stream(bench.backend)
            key = bench.backend.stream_key(stream)
            again = bench.backend.stream_key(stream)
            assert (key, hash(key)) == (again, hash(again)), (
                f"the keys of one stream must be equal, got {key!r} and {again!r}"
            )

    def test_two_streams_have_two_keys(self) -> None:
        with self.workbench(Capability.STREAM_ORDERED) as bench:
            streams = [self.make_stream(bench.backend) for _ in range(2)]
            keys = [bench.backend.stream_key(stream) for stream in streams]
            assert keys[0] != keys[1], f"two streams must differ, both are {keys[0]!r}"

    def test_what_is_no_stream_is_a_type_error(self) -> None:
        with self.workbench(Capability.STREAM_ORDERED) as bench:
            for wrong in (object(), "stream", 1.5):
                try:
                    key = bench.backend.stream_key(wrong)
                except TypeError:
                    continue
                raise AssertionError(
                    f"stream_key({wrong!r}) must raise TypeError, got {key!r}"
                )

    def test_an_event_is_reached(self) -> None:
        with self.workbench(Capability.STREAM_ORDERED) as bench:
            stream = self.make_stream(bench.backend)
            event = bench.backend.record(stream)
            is_done = bench.backend.is_done(event)
            assert isinstance(is_done, bool), f"is_done() must be a bool: {is_done!r}"
            bench.backend.synchronize(event)
            assert bench.backend.is_done(event) is True, (
                "an event must be done after synchronize()"
            )
            bench.backend.synchronize(event)  # what was reached stays so

    def test_work_of_one_stream_is_done_in_order(self) -> None:
        with self.workbench(*_FILL_AND_COPY) as bench:
            stream = self.make_stream(bench.backend)
            nbytes = align_up(_WORK_NBYTES, bench.unit)
            reservation = bench.usable(nbytes)
            bench.backend.fill(reservation, 0, nbytes, 1, stream=stream)
            bench.backend.fill(reservation, 0, nbytes, 2, stream=stream)
            target, found = bench.usable(nbytes), bytearray(nbytes)
            bench.backend.copy_inside(reservation, 0, target, 0, nbytes, stream=stream)
            bench.backend.copy_to_host(target, 0, memoryview(found), stream=stream)
            bench.backend.synchronize(bench.backend.record(stream))
            assert_bytes(found, b"\x02" * nbytes, "filled with 1, then 2, then copied")

    def test_a_stream_waits_for_another(self) -> None:
        with self.workbench(*_FILL_AND_COPY) as bench:
            first, second = (self.make_stream(bench.backend) for _ in range(2))
            nbytes = align_up(_WORK_NBYTES, bench.unit)
            reservation = bench.usable(nbytes)
            bench.backend.fill(reservation, 0, nbytes, 0)
            for value in (1, 2, 3):
                bench.backend.fill(reservation, 0, nbytes, value, stream=first)
            bench.backend.wait(second, bench.backend.record(first))
            found = bytearray(nbytes)
            bench.backend.copy_to_host(reservation, 0, memoryview(found), stream=second)
            bench.backend.synchronize(bench.backend.record(second))
            assert_bytes(found, b"\x03" * nbytes, "copied by a stream that waited")

    def test_released_memory_is_kept_for_the_work_that_is_queued(self) -> None:
        with self.workbench(*_FILL_AND_COPY) as bench:
            stream = self.make_stream(bench.backend)
            nbytes = align_up(_WORK_NBYTES, bench.unit)
            reservation, found = bench.usable(nbytes), bytearray(nbytes)
            for value in (1, 2, 3):
                bench.backend.fill(reservation, 0, nbytes, value, stream=stream)
            bench.backend.copy_to_host(reservation, 0, memoryview(found), stream=stream)
            end = bench.backend.record(stream)
            bench.release(reservation)
            bench.backend.synchronize(end)
            assert_bytes(found, b"\x03" * nbytes, "released while a copy was queued")

    def test_an_event_stands_where_it_was_recorded(self) -> None:
        with self.workbench(*_FILL_AND_COPY) as bench:
            stream = self.make_stream(bench.backend)
            data, found = pattern(bench.unit, 1), bytearray(bench.unit)
            reservation = bench.usable(bench.unit)
            source = memoryview(data)
            bench.backend.copy_from_host(reservation, 0, source, stream=stream)
            bench.backend.copy_to_host(reservation, 0, memoryview(found), stream=stream)
            event = bench.backend.record(stream)
            bench.backend.fill(reservation, 0, bench.unit, 0, stream=stream)
            bench.backend.synchronize(event)
            assert_bytes(found, data, "copied before the event")
            bench.backend.synchronize(bench.backend.record(stream))
            bench.assert_holds(reservation, 0, bytes(bench.unit), "filled")


class CaptureTests(BackendCase):
    """What ``Capability.CAPTURE`` promises of streams that are not captured."""

    def test_a_stream_that_is_not_captured_says_so(self) -> None:
        with self.workbench(Capability.CAPTURE) as bench:
            for stream in (None, self.make_stream(bench.backend)):
                found = bench.backend.is_capturing(stream)
                assert found is False, f"{stream!r} is captured by no graph: {found!r}"
