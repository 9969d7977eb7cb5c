"""What would have helped: outcomes of a trace, and the advice."""

import pytest

from madl.diagnostics.torch.models import AllocatorSettings, settings_of_text
from madl.diagnostics.whatif import MADL, Outcome, outcomes
from madl.diagnostics.whatif_report import CAVEAT, WhatIf, what_if
from tests.torch_dumps import MIB, Dump, fragmented
from tests.traces import trace


def growing() -> Dump:
    """Return a program whose requests grow: no segment is large enough for the next."""
    dump = Dump()
    for number in range(8):
        nbytes = (20 + 4 * number) * MIB
        dump.segment(number * 100 * MIB, nbytes)
        dump.alloc(number * 100 * MIB, nbytes)
        dump.free(number * 100 * MIB)
    return dump


def by_name(found: WhatIf) -> dict[str, Outcome]:
    return {one.name: one for one in found.outcomes}


def test_each_allocator_says_what_it_would_reserve() -> None:
    found = {one.name: one for one in outcomes(trace(f"a,0,{30 * MIB}"))}

    assert found["PyTorch's defaults"].peak_reserved_nbytes == 30 * MIB
    assert found["expandable_segments:True"].peak_reserved_nbytes == 40 * MIB
    assert found["roundup_power2_divisions:4"].peak_reserved_nbytes == 32 * MIB
    assert found[MADL].peak_reserved_nbytes == 30 * MIB
    assert all(one.fits is None for one in found.values())


def test_whether_it_fits_counts_what_is_given_back_at_the_limit() -> None:
    records = (f"a,0,{60 * MIB}", "f,0", f"a,1,{80 * MIB}", f"a,2,{10 * MIB}")

    found = {o.name: o for o in outcomes(trace(*records), None, 100 * MIB)}

    assert found["PyTorch's defaults"].peak_reserved_nbytes == 140 * MIB
    assert found["PyTorch's defaults"].fits
    assert found[MADL].fits
    assert "garbage_collection_threshold:0.8" in found


def test_nothing_fits_into_less_than_is_live() -> None:
    found = outcomes(trace(f"a,0,{60 * MIB}"), None, 10 * MIB)

    assert not any(one.fits for one in found)


def test_requests_for_nothing_cost_nothing() -> None:
    found = outcomes(trace("a,0,0", "f,0"))

    assert {one.peak_reserved_nbytes for one in found} == {0}


def test_progress_adds_up() -> None:
    done = list[tuple[int, int]]()

    outcomes(trace("a,0,9", "f,0"), on_progress=lambda *one: done.append(one))

    assert sum(events for events, _ in done) == done[0][1]


def test_the_settings_in_use_come_first_and_once() -> None:
    in_use = settings_of_text("max_split_size_mb:128")

    found = outcomes(trace("a,0,9"), in_use)

    assert (found[0].settings, found[0].is_in_use) == (in_use, True)
    assert [one.is_in_use for one in found].count(True) == 1


def test_the_failure_says_who_held_what() -> None:
    failure = what_if(fragmented().pickled()).failure

    assert failure is not None
    assert failure.requested_nbytes == 24 * MIB
    assert failure.place == "train.py:9 (step)"
    assert failure.holders == (("model.py:20 (step)", 36 * MIB, 2),)
    assert failure.live_nbytes + failure.free.nbytes == failure.reserved_nbytes
    assert failure.free.largest_nbytes == 14 * MIB


def test_the_capacity_is_what_was_reserved_and_what_was_left() -> None:
    found = what_if(fragmented().pickled())

    assert found.capacity_nbytes == (64 + 18) * MIB
    assert found.peak_live_nbytes == 64 * MIB


def test_a_fragmented_program_is_told_what_to_export() -> None:
    found = what_if(fragmented().pickled())

    assert not by_name(found)["PyTorch's defaults"].fits
    assert by_name(found)[MADL].fits
    assert found.export == "expandable_segments:True"
    assert found.advice == (
        "With expandable_segments:True, 80.0 MiB would be reserved instead of 88.0 MiB"
    )


def test_what_is_on_already_is_not_advised() -> None:
    dump = growing()
    dump.settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

    found = what_if(dump.pickled())

    assert found.outcomes[0].is_in_use
    assert found.export is None
    assert found.advice == "No other setting needs notably less than that in use"


def test_too_much_at_once_is_not_blamed_on_the_allocator() -> None:
    dump = fragmented()
    dump.fail(100 * MIB, 8 * MIB)

    found = what_if(dump.pickled())

    assert found.export is None
    assert found.advice.startswith(
        "No setting helps: 136.0 MiB are needed at once, and the device has 72.0 MiB."
    )


def test_when_only_madl_fits_that_is_said() -> None:
    found = what_if(fragmented().pickled(), capacity_nbytes=64 * MIB)

    assert [one.name for one in found.outcomes if one.fits] == [MADL]
    assert found.export is None
    assert found.advice == (
        "No setting of PyTorch would have fitted. Placed as by madl's pool it needs "
        "64.0 MiB, which fits"
    )


def test_the_model_in_use_is_compared_with_what_was_recorded() -> None:
    found = what_if(growing().pickled())

    assert found.recorded_peak_nbytes == 272 * MIB
    assert found.outcomes[0].peak_reserved_nbytes == 272 * MIB
    assert found.model_error == 0


def test_what_pytorch_could_not_place_is_no_error_of_the_model() -> None:
    found = what_if(fragmented().pickled())

    assert found.recorded_peak_nbytes == 64 * MIB
    assert found.outcomes[0].peak_reserved_nbytes == 88 * MIB
    assert found.model_error == 0


def test_the_error_on_a_gpu_is_called_unknown() -> None:
    assert CAVEAT in what_if(growing().pickled()).notes
    assert "not known" in CAVEAT


def test_a_model_that_contradicts_the_program_is_doubted() -> None:
    dump = growing()
    dump.fail(MIB, 20 * MIB)

    (note, _) = what_if(dump.pickled()).notes

    assert note.startswith("The program ran out of memory where the model")
    assert what_if(fragmented().pickled()).notes == (CAVEAT,)


def test_garbage_collection_is_advised_only_where_nothing_else_fits() -> None:
    dump = growing()
    dump.fail(MIB, 100 * MIB)

    found = what_if(dump.pickled())

    assert found.export == "expandable_segments:True"
    collecting = by_name(found)["garbage_collection_threshold:0.8"]
    assert collecting.fits


def test_without_history_the_holders_are_still_shown() -> None:
    dump = fragmented()
    dump.forget(len(dump.events))

    found = what_if(dump.pickled())

    assert found.outcomes == ()
    assert found.holders == (("model.py:20 (step)", 36 * MIB, 2),)
    assert "_record_memory_history()" in found.advice


def test_a_trace_is_explained_as_well() -> None:
    found = what_if(b"# madl-trace v1\na,0,1000\n", capacity_nbytes=4 * MIB)

    assert (found.device, found.failure, found.events) == (None, None, 1)
    assert all(one.fits for one in found.outcomes)
    assert found.outcomes[0].settings == AllocatorSettings()


@pytest.mark.parametrize("lost", [1, 4, 8])
def test_a_ring_buffer_that_lost_its_start_still_gives_an_answer(lost: int) -> None:
    dump = fragmented()
    dump.forget(lost)

    found = what_if(dump.pickled())

    assert found.capacity_nbytes == 82 * MIB
    assert found.peak_live_nbytes >= 60 * MIB
    assert found.outcomes


@pytest.mark.parametrize("nbytes", [1 << 50, (1 << 56) - 1])
def test_a_request_that_no_device_could_serve_is_said_to_be_wrong(nbytes: int) -> None:
    dump = fragmented()
    dump.fail(nbytes, 18 * MIB)

    for data in (dump.pickled(), b"# madl-trace v1\na,0,%d\n" % nbytes):
        found = what_if(data)

        assert found.outcomes == ()
        assert found.advice.startswith("No setting helps: ")
        assert found.advice.endswith("Try: look for a shape that is wrong")
