"""The page of ``madl view`` in Chromium: it opens, shows the figures, and slides.

``nox -s view`` runs this with everything it needs, and leaves screenshots.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from madl.diagnostics import example_path
from madl.diagnostics.histories import open_history
from madl.diagnostics.history import History
from madl.diagnostics.view import view_page
from madl.sizes import format_nbytes
from tests.browser.chromium import Tab, browser
from tests.torch_dumps import fragmented

ATTACK = "<img src=x onerror=alert(1)><script>alert(2)</script>&amp;"
EVENTS = 160_000
MOST_SECONDS = 3.0
SHOTS = os.environ.get("TEST_MADL_SCREENSHOTS")
VIEWS = [(1280, "light"), (1280, "dark"), (800, "light"), (800, "dark")]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def page_of(tmp_path: Path) -> Any:  # noqa: ANN401  # a function
    def write(history: History) -> Path:
        path = tmp_path / "page.html"
        path.write_text(view_page(history), "utf-8")
        return path

    return write


def long_trace() -> bytes:
    """Return a trace of 160,000 events: blocks of many sizes and tags come and go."""
    lines, live = ["# madl-trace v1", "# name: 160,000 events"], list[int]()
    for number in range(EVENTS // 2):
        size = 1 << (9 + number * 7919 % 15)
        lines.append(f"a,{number},{size + number % 977},0,tag{number % 23}")
        live.append(number)
        if number % 400 > 150 or number > EVENTS // 2 - 200:
            lines.extend(f"f,{live.pop(number % len(live))}" for _ in range(2) if live)
    lines.extend(f"f,{one}" for one in live)
    return "\n".join([*lines, ""]).encode()


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_a_snapshot_is_shown_without_a_complaint(
    chromium: Any,  # noqa: ANN401  # playwright's
    page_of: Any,  # noqa: ANN401  # a fixture's function
    width: int,
    scheme: str,
) -> None:
    file = page_of(open_history(fragmented().pickled()))

    tab = Tab(
        chromium, file, viewport={"width": width, "height": 900}, color_scheme=scheme
    )

    tab.slide(0.75)
    assert tab.complaints == []
    assert tab.requests == [file.as_uri()]
    overflow = "document.documentElement.scrollWidth - window.innerWidth"
    assert tab.page.evaluate(overflow) <= 0
    _shoot(tab, f"snapshot-{width}-{scheme}")


def test_the_readout_has_the_figures_of_every_moment(
    chromium: Any,  # noqa: ANN401  # playwright's
    page_of: Any,  # noqa: ANN401  # a fixture's function
) -> None:
    history = open_history(example_path("vit-train"))
    tab = Tab(chromium, page_of(history))

    for part in (0, 0.2, 0.5, 0.77, 1):
        moment = tab.slide(part)
        text = tab.readout()
        rows = int(history.live_at(moment).sum())
        free = history.free_at(moment)
        assert f"event {moment:,} of {history.last_moment:,}" in text
        assert f"in {rows - _empty(history, moment):,} blocks" in text
        assert f"fragmentation {100 * free.fragmentation_ratio:.0f} %" in text
        for nbytes in (history.committed_nbytes[moment], history.live_nbytes[moment]):
            assert _number(format_nbytes(int(nbytes))) in text
    assert tab.complaints == []


def test_the_buttons_go_to_their_moments(
    chromium: Any,  # noqa: ANN401  # playwright's
    page_of: Any,  # noqa: ANN401  # a fixture's function
) -> None:
    tab = Tab(chromium, page_of(open_history(fragmented().pickled())))
    said = []

    for button in ("#end", "#back", "#peak", "#ahead", "#failure"):
        tab.page.click(button)
        tab.page.wait_for_timeout(100)
        said.append(tab.readout().split(" of ")[0])

    assert said == [f"event {n}" for n in (8, 7, 2, 3, 6)]


def test_the_step_of_the_last_event_can_be_seen_and_clicked(
    chromium: Any,  # noqa: ANN401  # playwright's
    page_of: Any,  # noqa: ANN401  # a fixture's function
) -> None:
    tab = Tab(chromium, page_of(open_history(fragmented().pickled())))
    area = tab.page.query_selector("#timeline .nsewdrag").bounding_box()

    tab.page.mouse.click(area["x"] + area["width"] - 6, area["y"] + 80)
    tab.page.wait_for_timeout(500)

    assert tab.readout().startswith("event 8 of 8 ")
    assert tab.page.text_content("#timeline .hoverlayer").startswith("8")


def test_a_block_under_the_pointer_says_what_it_is(
    chromium: Any,  # noqa: ANN401  # playwright's
    page_of: Any,  # noqa: ANN401  # a fixture's function
) -> None:
    tab = Tab(chromium, page_of(open_history(fragmented().pickled())))

    tab.page.hover("#map", position={"x": 40, "y": 8})

    tip = tab.page.inner_text("#tip").splitlines()
    assert tip[0] == "32.0 MiB (33,554,432 bytes)"
    assert tip[1] == "model.py:7 (step)"
    assert tip[2:] == ["address 0x7f0000000000", "from event 1 to 3"]


def test_html_in_names_is_text(
    chromium: Any,  # noqa: ANN401  # playwright's
    page_of: Any,  # noqa: ANN401  # a fixture's function
) -> None:
    lines = ["# madl-trace v1", f"# name: {ATTACK}", f"m,{ATTACK}"]
    lines += [f"a,0,3000000,0,{ATTACK}", "a,1,5000,0,<b>bold</b>"]
    tab = Tab(chromium, page_of(open_history("\n".join(lines).encode())))

    tab.slide(1)
    tab.page.hover("#map", position={"x": 40, "y": 8})
    tab.page.hover("#timeline .nsewdrag >> nth=0")
    tab.page.wait_for_timeout(200)

    assert tab.complaints == []
    assert tab.page.query_selector_all("img, b > b") == []
    assert tab.page.inner_text("#title") == ATTACK
    assert ATTACK in tab.page.inner_text("#holders")
    assert ATTACK in tab.page.inner_text("#tip")
    legend = tab.page.text_content("#timeline .legend")
    assert "<b>bold</b>" in legend


@pytest.mark.parametrize("width", [1280, 800])
def test_a_page_of_160_000_events_opens_and_slides(
    chromium: Any,  # noqa: ANN401  # playwright's
    page_of: Any,  # noqa: ANN401  # a fixture's function
    width: int,
) -> None:
    history = open_history(long_trace())
    file, seconds = page_of(history), []

    for _ in range(3 if SHOTS else 1):
        started = time.perf_counter()
        tab = Tab(chromium, file, viewport={"width": width, "height": 900})
        seconds.append(time.perf_counter() - started)
    moment = tab.slide(0.401)

    assert history.last_moment >= EVENTS
    assert tab.complaints == []
    assert tab.readout().startswith(f"event {moment:,} of ")
    _shoot(tab, f"trace-{width}")
    if SHOTS:  # the machine is not busy with other tests
        print(f"opened in {min(seconds):.2f} s")  # noqa: T201  # for who runs nox
        assert min(seconds) < MOST_SECONDS


def _empty(history: History, moment: int) -> int:
    return int((history.live_at(moment) & (history.blocks.nbytes == 0)).sum())


def _number(text: str) -> str:
    """Return the digits that the page, which may print more, has too."""
    return text.split(".")[0]


def _shoot(tab: Tab, name: str) -> None:
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        tab.page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)
