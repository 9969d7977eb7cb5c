"""The page that ``madl view`` writes, without a browser."""

import base64
import gzip
import hashlib
import html.parser
import json
import re
import sys
from typing import Any

import numpy as np
import pytest

from madl import Pool
from madl.diagnostics import example_path, open_trace, read_trace
from madl.diagnostics.histories import open_history
from madl.diagnostics.history import History
from madl.diagnostics.replay import replay
from madl.diagnostics.runs import page
from madl.diagnostics.runs.from_trace import history_of_trace
from madl.diagnostics.runs.map import address_map
from madl.diagnostics.view import view_page
from tests.torch_dumps import BASE, MIB, fragmented

ATTACK = "</script><img src=x onerror=alert(1)><!--<script>&amp;"
VOID = {"img", "input", "link", "meta"}
SCRIPT = '<script(?: type="text/plain" id="plotly")?>(.*?)</script>'


class Elements(html.parser.HTMLParser):
    """The elements of a page, each closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(page)
        self.close()

    def handle_starttag(
        self, tag: str, attributes: list[tuple[str, str | None]]
    ) -> None:
        self.seen.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        key = self.seen[-1][1].get("id") or self.seen[-1][0] if self.seen else ""
        self.texts[key] = self.texts.get(key, "") + data


@pytest.fixture(autouse=True)
def plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for plotly's four megabytes, where it is not installed too."""
    monkeypatch.setattr("madl.diagnostics.view._plotly", lambda: "/* plotly */")


def attacked() -> History:
    tag = ATTACK.replace(",", "")
    lines = ["# madl-trace v1", f"# name: {ATTACK}", f"a,0,100,0,{tag}", f"m,{tag}"]
    return history_of_trace(read_trace("\n".join(lines).encode()))


def columns(table: dict[str, Any]) -> dict[str, Any]:
    content = gzip.decompress(base64.b64decode(table["packed"]))
    found, at = {}, 0
    for name, kind in table["columns"]:
        found[name] = np.frombuffer(content, f"<{kind}", table["rows"], at)
        at += found[name].nbytes
    assert at == len(content)
    return found


def test_the_page_is_well_formed() -> None:
    elements = Elements(view_page(history_of_trace(open_trace(_example()))))

    assert elements.open == []
    assert {"html", "head", "body", "canvas", "table"} <= {e for e, _ in elements.seen}


def test_the_page_loads_nothing() -> None:
    elements = Elements(view_page(attacked()))

    for _, attributes in elements.seen:
        assert not attributes.keys() & {"src", "href", "action", "srcset"}


def test_only_the_scripts_of_the_page_may_run() -> None:
    page = view_page(attacked())

    policies = [one["content"] for _, one in Elements(page).seen if "http-equiv" in one]
    policy = policies[0] or ""
    scripts = re.findall(SCRIPT, page, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy
    assert "default-src 'none'" in policy
    assert policy.count("sha256-") == 2
    assert "unsafe-inline" not in policy.partition("script-src")[2]


def test_names_out_of_a_file_are_text_and_nothing_else() -> None:
    page = view_page(attacked())
    elements = Elements(page)

    assert elements.open == []
    assert "img" not in [element for element, _ in elements.seen]
    data = json.loads(elements.texts["data"])
    assert data["holders"][0] == data["markers"][0][1] == ATTACK
    assert elements.texts["title"].startswith(ATTACK)
    assert "<" not in elements.texts["data"]


def test_the_figures_are_those_of_a_replay() -> None:
    trace = open_trace(_example())
    result = replay(trace, Pool("sim"))

    data = page.page_data(history_of_trace(trace))

    live = np.sum(data["curves"]["live"], axis=0)
    assert live.max() == result.peak_live_nbytes == trace.peak_live_nbytes
    assert max(data["curves"]["committed"]) == result.peak_committed_nbytes
    assert data["last_moment"] == len(trace)


def test_the_map_has_every_block_at_the_peak() -> None:
    history = history_of_trace(open_trace(_example()))
    data = page.page_data(history)
    blocks, peak = columns(data["blocks"]), history.peak_moment

    live = (blocks["start"] <= peak) & (peak < blocks["stop"])

    assert int(blocks["nbytes"][live].sum()) == history.peak_live_nbytes
    assert (blocks["address"] + blocks["nbytes"]).max() <= data["span"]
    ranges = columns(data["ranges"])
    there = (ranges["start"] <= peak) & (peak < ranges["stop"])
    assert int(ranges["nbytes"][there].sum()) == history.committed_nbytes[peak]


def test_a_block_says_who_holds_it_and_where_it_was_asked_for() -> None:
    data = page.page_data(open_history(fragmented().pickled()))
    blocks = columns(data["blocks"])

    names = [data["places"][n] for n in blocks["place"]]

    assert names == ["model.py:7 (step)"] * 2 + ["model.py:20 (step)"] * 2
    assert [data["holders"][n] for n in blocks["holder"]] == names
    assert data["arenas"] == [
        {"at": 0, "address": str(BASE)},
        {"at": 32 * MIB, "address": str(BASE + 64 * MIB)},
    ]
    assert [7, "out of memory"] in [list(one) for one in data["markers"]]


def test_what_is_sampled_is_said() -> None:
    (note,) = page.page_data(history_of_trace(open_trace(_example())))["notes"]

    assert re.match(r"The curves show 1,20\d of 20,319 moments", note)


def test_the_map_keeps_the_largest_of_too_many_blocks_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "BLOCKS_ON_PAGE", 2)
    lines = ["# madl-trace v1", "a,0,100", "a,1,300", "a,2,200"]
    data = page.page_data(history_of_trace(read_trace("\n".join(lines).encode())))

    assert columns(data["blocks"])["nbytes"].tolist() == [300, 200]
    assert data["notes"] == [
        "The map and its list of holders know the 2 largest of 3 blocks, which are "
        "200 B and more."
    ]


def test_the_names_of_the_most_bytes_are_kept_of_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "NAMES_ON_PAGE", 1)
    lines = ["# madl-trace v1", "a,0,100,0,x", "a,1,300,0,y"]
    data = page.page_data(history_of_trace(read_trace("\n".join(lines).encode())))

    holder = columns(data["blocks"])["holder"]
    assert [data["holders"][n] for n in holder] == [page.OTHER_NAMES, "y"]


def test_a_long_name_is_cut_in_the_middle() -> None:
    line = f"a,0,100,0,{'x' * 500}end"
    trace = read_trace(f"# madl-trace v1\n{line}\n".encode())

    name = page.page_data(history_of_trace(trace))["holders"][0]

    assert len(name) == page.NAME_LENGTH + 1
    assert name.endswith("xend")


def test_a_run_of_nothing_has_a_page() -> None:
    history = history_of_trace(read_trace(b"# madl-trace v1\n"))

    assert Elements(view_page(history)).open == []
    assert address_map(history).span == 0


def test_without_plotly_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)

    with pytest.raises(ImportError, match=r"pip install 'madl\[viz\]'"):
        view_page(attacked())


def _example() -> Any:  # noqa: ANN401  # whatever example_path returns
    return example_path("resnet50-train")
