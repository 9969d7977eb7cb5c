"""Each wrong backend fails the test that is there for its mistake."""

import functools
import re
from collections.abc import Callable
from typing import NamedTuple, cast
from unittest import SkipTest

import pytest

from madl.backends.protocol import Backend
from madl.backends.shared import SharedBackend
from madl.testing import BackendConformance, FakeBackend, FakeStream, FakeView
from madl.testing.sharing import ShareTests
from tests.testing import wrong, wrong_sharing

EXPECTED: dict[Callable[[], object], tuple[str, str]] = {
    wrong.NeverReleases: ("release_gives_the_memory_back", "release does not give"),
    wrong.KeepsAddresses: ("release_gives_the_addresses_back", "then refused"),
    wrong.HandsOutTheSameMemory: ("reservations_do_not_overlap", "live .* overlap"),
    wrong.MixesUpReservations: ("reservations_have_bytes_of_their_own", "of 8, after"),
    wrong.CommitsLargerPieces: ("any_granules_are_committed", "invalid argument"),
    wrong.SaysMoreThanWasAskedFor: ("a_reservation_is_what_was_asked", "must be exact"),
    wrong.IsNotAligned: ("a_reservation_is_aligned", "no multiple of the alignment"),
    wrong.IsAlignedToNoPowerOfTwo: ("its_sizes_are_plausible", "of two, got 12288"),
    wrong.ReleasesInReverseOnly: ("reservations_are_released_in_any", "not the last"),
    wrong.HasNoMemoryInfo: ("it_has_the_seven_names", "have granularity, memory_info"),
    wrong.BelongsToOneThread: ("any_thread_may_call_it", "invalid context"),
    wrong.DescribesItselfInNumbers: ("what_it_says_of_itself", "has 'level': 7"),
    wrong.NamesItselfInWords: ("its_device_has_a_proper_name", "got 'My device'"),
    wrong.HasMoreLeftThanItHas: ("its_memory_info_is_plausible", "between 0 and total"),
    wrong.ClaimsWhatItHasNot: (
        "every_capability_that_it_claims",
        "claims COPY, but has no copy_from_host, copy_inside, copy_to_host",
    ),
    wrong.RemapsWithoutCommit: ("it_claims_what_its_", "REMAP without COMMIT"),
    wrong.ChangesItsMind: ("its_capabilities_are_constant", "and now"),
    wrong.RaisesAnyMemoryError: ("more_than_any_device_has", "raises OutOfMemoryError"),
    wrong.GivesTheWrongNumbers: ("more_than_any_device_has", "the error says 0"),
    wrong.TakesWhatItRefuses: ("more_than_any_device_has", "must take nothing"),
    wrong.TakesWhatItRefusesToCommit: ("a_refused_commit_changes", "must take nothing"),
    wrong.AcceptsASecondRelease: ("a_second_release_is_an_error", "second release"),
    wrong.RaisesKeyErrorForAForeigner: ("releasing_the_reservation_of_an", "KeyError"),
    wrong.CommitsAtOnce: ("a_reservation_of_addresses", "is of addresses only"),
    wrong.HasAnOddPage: ("its_page_is_a_multiple", "granularity 4096, got 5000"),
    wrong.NeverDecommits: ("a_decommit_gives_the_memory", "decommit does not give"),
    wrong.DecommitsTooMuch: ("a_decommit_keeps_what_is_beside", "part 0 .* byte 4095"),
    wrong.MovesTooMuch: ("what_moves_leaves_the_rest", "part 2 of 3, after a remap"),
    wrong.MovesIntoItselfOnly: ("memory_moves_into_another", "remap|REMAP|COMMIT"),
    wrong.TakesNewMemoryToMove: ("moving_takes_no_new_memory", "must take none"),
    wrong.RefusesSmallPages: ("pages_are_chosen_or_refused", "huge=False"),
    wrong.FaultsInWhatItDoesNotCommit: ("prefaulted_memory_is_as_any_oth", "decommit"),
    wrong.HasAnyNode: ("a_node_that_there_is_not_is_refused", "must be refused"),
    wrong.LetsNobodyUnchooseANode: ("a_node_is_chosen_or_refused", "must not be refus"),
    wrong.ReturnsBeforeItHasCopied: ("a_copy_is_complete_on_return", "without a str"),
    wrong.CopiesWholeWords: ("a_copy_changes_its_own_bytes", "into the middle"),
    wrong.CopiesTheOtherWay: ("bytes_move_inside_the_device", "copied inside"),
    wrong.FillsOneByteMore: ("a_fill_changes_its_own_bytes", "after four fills"),
    wrong.ShiftsItsViews: ("parts_of_a_reservation_are_native", "view of offset 512"),
    wrong.HasNoViews: ("parts_of_a_reservation_are_native", "offset 0 is None"),
    wrong.HasNoAddress: ("memory_that_host_and_device_share", "has no address"),
    wrong.WorksBackwards: ("work_of_one_stream_is_done_in_order", "then copied"),
    wrong.DoesNotWait: ("a_stream_waits_for_another", "stream that waited"),
    wrong.RecordsTooEarly: ("work_of_one_stream_is_done_in_order", "then copied"),
    wrong.ForgetsThatItIsDone: ("an_event_is_reached", "after synchronize"),
    wrong.ReleasesUnderQueuedWork: (
        "released_memory_is_kept",
        "was not released yet",
    ),
    wrong.HasOneKeyForAll: ("two_streams_have_two_keys", "must differ"),
    wrong.HasANewKeyEachTime: ("one_stream_has_one_key", "must be equal"),
    wrong.SharesItsMemory: ("a_simulated_device_is_one_of", "take from one device"),
    wrong.IsNotZeroWhenNew: ("what_was_never_written_reads", "expected 00"),
    wrong.CopiesFromTheStart: ("bytes_come_from_another_backend", "another backend"),
    wrong.ReachesAll: ("it_says_which_backends_it_reaches", "must be False of 'sim'"),
    wrong.FinishesNothing: ("what_is_staged_has_arrived", "after finish"),
    wrong.AlwaysCaptures: ("a_stream_that_is_not_captured", "captured by no graph"),
    wrong.HasAnOddPageForALimit: ("a_page_suits_a_limit", "be a multiple of the"),
    wrong.GuardsWhatItCommits: ("memory_between_guard_pages", "decommit"),
    wrong.SettlesNothing: ("a_range_is_settled", "committed already"),
    wrong.ForgetsTheOwner: ("a_capsule_keeps_the_owner", "must keep the owner"),
    wrong.TellsTheSameHandle: ("a_stream_has_a_handle_of_its_own", "none 0"),
    wrong_sharing.AttachesACopy: ("what_is_attached_is_the_memory", "other side"),
    wrong_sharing.AttachesFromTheStart: ("a_part_is_attached_from_where", "middle"),
    wrong_sharing.SharesWhatItOwns: ("what_was_shared_outlives", "not released yet"),
    wrong_sharing.EmptiesWhatItReleases: ("what_is_attached_is_released_alone", "was"),
    wrong_sharing.SharesWithinItself: ("multiprocessing_can_send_it", "be sent"),
    wrong_sharing.AttachesPartsOfTheStart: ("more_than_was_shared", "were attached"),
}
TESTS = [name for name in dir(BackendConformance) if name.startswith("test_")]
OF_SHARING = sorted(name for name in dir(ShareTests) if name.startswith("test_"))


class Outcome(NamedTuple):
    failures: dict[str, str]
    """What the tests that fail say, by name."""
    skipped: list[str]


@functools.cache
def outcome_of(backend: Callable[[], object]) -> Outcome:
    class Case(BackendConformance):
        def make_backend(self) -> Backend:
            return cast("Backend", backend())

        def make_stream(self, backend: Backend) -> FakeStream:
            return cast("FakeBackend", backend).make_stream()

        def bytes_of_view(self, backend: Backend, view: object) -> bytes:
            return bytes_behind(backend, view)

    outcome = Outcome({}, [])
    for name in TESTS:
        try:
            getattr(Case(), name)()
        except SkipTest:
            outcome.skipped.append(name)
        except Exception as error:
            outcome.failures[name] = str(error)
    return outcome


def bytes_behind(backend: Backend, view: object) -> bytes:
    assert isinstance(backend, FakeBackend)
    assert isinstance(view, FakeView)
    found = bytearray(view.nbytes)
    backend.copy_to_host(view.reservation, view.offset, memoryview(found))
    return bytes(found)


def test_a_right_backend_passes_every_test() -> None:
    assert outcome_of(wrong.Wrong) == ({}, OF_SHARING)


def test_a_backend_that_shares_passes_the_tests_of_sharing() -> None:
    outcome = outcome_of(SharedBackend)

    assert outcome.failures == {}
    assert set(outcome.skipped).isdisjoint(OF_SHARING)


@pytest.mark.parametrize("backend", EXPECTED, ids=lambda backend: backend.__name__)
def test_a_mistake_is_found_by_the_test_for_it(backend: Callable[[], object]) -> None:
    start, text = EXPECTED[backend]

    failures = outcome_of(backend).failures

    found = [name for name in failures if name.startswith(f"test_{start}")]
    assert len(found) == 1, f"expected {start}, got {failures}"
    assert re.search(text, failures[found[0]]), failures[found[0]]


def test_every_test_has_a_mistake_to_find() -> None:
    found = {name for backend in EXPECTED for name in outcome_of(backend).failures}

    assert set(TESTS) - found == set()
