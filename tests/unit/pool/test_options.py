"""A pool's options: what they become on a device, and what is refused."""

from typing import Any

import pytest

from madl import Capability, Pool, testing
from madl.backends.protocol import HugePages
from madl.errors import MissingCapabilityError
from madl.pool.options import Zero
from tests.fakes import FakeBackend

KIB = 1024
CHOOSY = testing.FakeBackend(
    capabilities=Capability.COMMIT | Capability.PREFAULT | Capability.NUMA
)


def test_without_options_the_device_decides() -> None:
    pool = Pool(FakeBackend())

    assert pool.limit_nbytes is None
    assert pool.page_nbytes == 16 * KIB


@pytest.mark.parametrize(
    ("limit", "page_nbytes"),
    [
        ("1 MiB", 16 * KIB),
        ("256 KiB", 16 * KIB),
        ("255 KiB", 8 * KIB),
        ("64 KiB", 4 * KIB),
        (1, 4 * KIB),
        (0, 4 * KIB),
    ],
)
def test_pages_shrink_until_a_limit_holds_sixteen(
    limit: int | str, page_nbytes: int
) -> None:
    assert Pool(FakeBackend(), limit=limit).page_nbytes == page_nbytes


def test_a_page_size_is_taken_as_it_is() -> None:
    pool = Pool(FakeBackend(), page_size="12 KiB", limit="64 KiB")

    assert pool.page_nbytes == 12 * KIB


@pytest.mark.parametrize("page_size", [0, 100, 6 * KIB])
def test_a_page_is_a_multiple_of_the_granularity(page_size: int) -> None:
    with pytest.raises(ValueError, match="page_size") as caught:
        Pool(FakeBackend(), page_size=page_size)

    assert str(caught.value) == (
        f"page_size must be a multiple of 4096 bytes on fake, got {page_size}"
    )


def test_a_limit_is_a_byte_count() -> None:
    with pytest.raises(ValueError, match="limit") as caught:
        Pool(FakeBackend(), limit=-1)

    assert str(caught.value) == "limit must not be negative, got -1"


def test_an_unknown_fit_is_named() -> None:
    with pytest.raises(ValueError, match="fit") as caught:
        Pool(FakeBackend(), fit="worst")  # type: ignore[arg-type]  # so the checkers say, too

    assert str(caught.value) == "fit must be one of first, best, got 'worst'"


def test_a_device_without_pages_has_no_page_size() -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        Pool(FakeBackend(commits=False), page_size=4096)

    assert str(caught.value) == (
        "fake has no pages, which page_size= sets. Try: leave out page_size="
    )


@pytest.mark.parametrize("huge_pages", [True, False, "explicit"])
def test_a_device_without_huge_pages_refuses_a_wish(huge_pages: HugePages) -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        Pool(FakeBackend(), huge_pages=huge_pages)

    assert str(caught.value) == "fake has no huge pages. Try: leave out huge_pages="


def test_an_unknown_kind_of_huge_pages_is_named() -> None:
    with pytest.raises(ValueError, match="huge_pages") as caught:
        Pool(FakeBackend(), huge_pages="gigantic")  # type: ignore[arg-type]  # wrong

    assert str(caught.value) == (
        "huge_pages must be True, False, 'explicit' or None, got 'gigantic'"
    )


def test_a_device_that_cannot_prefault_refuses_a_wish() -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        Pool(FakeBackend(), prefault=True)

    assert str(caught.value) == (
        "fake has no memory that can be faulted in. Try: leave out prefault="
    )


def test_a_device_without_nodes_refuses_a_wish() -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        Pool(FakeBackend(), numa_node=0)

    assert str(caught.value) == "fake has no NUMA nodes. Try: leave out numa_node="


@pytest.mark.parametrize(
    ("node", "kind", "text"),
    [
        (True, TypeError, "numa_node must be an int or None, got True"),
        ("0", TypeError, "numa_node must be an int or None, got '0'"),
        (-1, ValueError, "numa_node must not be negative, got -1"),
    ],
)
def test_what_is_no_node_is_named(node: int, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:  # the whole text is compared
        Pool(CHOOSY, numa_node=node)

    assert str(caught.value) == text


def test_a_pool_tells_its_device_what_was_chosen() -> None:
    Pool(CHOOSY, prefault=True, numa_node=0)
    chosen = CHOOSY.is_prefaulting, CHOOSY.node
    Pool(CHOOSY)

    assert chosen == (True, 0)
    assert (CHOOSY.is_prefaulting, CHOOSY.node) == (False, None)


@pytest.mark.parametrize("zero", [True, "free"])
def test_zeros_that_nobody_can_write_are_refused(zero: Zero) -> None:
    with pytest.raises(MissingCapabilityError) as caught:
        Pool(FakeBackend(), zero=zero)

    assert str(caught.value) == "fake has no way to write zeros. Try: leave out zero="


@pytest.mark.parametrize("zero", ["allocate", 1, None])
def test_other_words_for_zero_are_refused(zero: Any) -> None:  # noqa: ANN401  # what users pass
    with pytest.raises(ValueError, match="zero must be True, False or 'free', got"):
        Pool("cpu", zero=zero)


@pytest.mark.parametrize(
    ("variable", "argument", "calls"),
    [("on", None, 0), ("off", None, 1), ("off", True, 0), ("on", False, 1)],
)
def test_pooling_follows_the_argument_then_the_environment(
    variable: str,
    argument: bool | None,
    calls: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MADL_POOL", variable)
    backend = FakeBackend()
    pool = Pool(backend, pooling=argument)

    pool.allocate(100).free()
    pool.allocate(100)

    assert backend.calls.count("release") == calls
