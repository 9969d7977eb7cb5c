"""32-bit x86, natively: Debian's Python on a 64-bit kernel that runs both."""

import platform

from tools.portability import roots, suite
from tools.portability.outcome import SkippedError
from tools.portability.shell import cache

# They ask for more than 4 GiB, or expect it to be had; traces hold what the process
# that writes them could address.
_CONFORMANCE = (
    "emulated/test_conformance_posix.py::TestFallback",
    "test_conformance_cpu.py::TestCpu",
    "test_conformance_cpu.py::TestCpuInSmallPages",
    "test_conformance_sim.py::TestSim",
    "test_conformance_sim.py::TestSimWithoutCommits",
)
PRESUMES_64_BITS = (
    *(
        f"tests/backends/{suite_of_one}::{test}"
        for suite_of_one in _CONFORMANCE
        for test in (
            "test_a_pool_survives_running_out_of_memory",
            "test_a_reservation_of_addresses_takes_no_memory",
            "test_moving_takes_no_new_memory",
        )
    ),
    "tests/backends/test_cpu.py::test_four_times_the_memory_can_be_reserved",
    "tests/backends/test_cpu_pool_limits.py"
    "::test_under_an_address_space_limit_reservations_are_smaller",
    "tests/backends/test_cpu_pool_limits.py::test_a_walk_under_a_data_limit_is_strict",
    "tests/backends/test_linux_commit.py::test_overcommit_mode_2_is_strict",
    "tests/backends/test_linux_commit.py"
    "::test_strict_decommit_gives_back_what_is_counted",
    "tests/backends/test_linux_limits.py"
    "::test_a_data_limit_makes_reservations_strict_and_commits_fail",
    "tests/backends/test_linux_limits.py"
    "::test_a_limit_lowered_below_what_is_in_use_does_not_unmap_the_destination",
    "tests/backends/test_linux_reserve.py::test_a_reservation_takes_address_space_only",
    "tests/backends/test_linux_reserve.py::test_release_returns_the_address_space",
    "tests/property/test_trace_round_trip.py",
    "tests/unit/test_arrays.py::test_other_shapes_are_refused",
    "tests/unit/test_defaults.py::test_what_is_no_byte_count_is_refused",
    "tests/unit/test_defaults.py::test_sizes_that_fit_no_device_run_out_of_memory",
    "tests/unit/test_defaults.py"
    "::test_madl_pool_off_passes_every_allocation_to_the_device",
    "tests/unit/test_growth.py::test_a_trace_of_any_size_runs_on_the_simulated_device",
    "tests/unit/test_pool_limits.py"
    "::test_a_request_over_the_limit_leaves_the_bins_as_they_are",
    "tests/unit/test_sizes.py::test_a_byte_count_is_read",
    "tests/unit/test_trace_writer.py"
    "::test_what_a_trace_cannot_hold_is_refused_and_nothing_is_written",
)


def main() -> str:
    """Run the tests, a smoke test and a replay."""
    if platform.machine() != "x86_64":
        raise SkippedError(f"the machine is {platform.machine()}, not x86_64")
    roots_folder = roots.root(
        "i386", "i386", "bookworm", (*roots.PYTHON, "python3-numpy")
    )
    loader = "lib/i386-linux-gnu/ld-linux.so.2"
    python = roots.make_native(roots_folder, "python3.11", loader, "i386-linux-gnu")
    platforms = tuple(f"manylinux_2_{minor}_i686" for minor in (17, 28, 31, 34))
    site = roots.wheels("i386-wheels", "3.11", platforms, *suite.TESTS)
    assert cache() in python.parents
    seen = suite.run_smoke([python], site)
    replayed = suite.run_replay([python], site)
    passed = suite.run_tests([python], site, deselected=PRESUMES_64_BITS)
    return f"{seen}; {replayed}; {passed}"
