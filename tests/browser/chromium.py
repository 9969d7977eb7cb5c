"""Chromium without a window, where there is one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REQUIRED = "browser" in os.environ.get("MADL_REQUIRE", "")
TIMEOUT_MS = 20_000
READY = "html[data-ready=yes]"


@contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium; skip where it, plotly or playwright is missing."""
    if not REQUIRED:
        pytest.importorskip("plotly")
        pytest.importorskip("playwright")
        if CHROMIUM is None:
            pytest.skip("there is no Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # No sandbox: the page is our own, and root, as in a container, has none.
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield chromium
        chromium.close()


class Tab:
    """A page that is open, and everything that it complained about."""

    def __init__(self, chromium: Any, file: Path, **options: object) -> None:  # noqa: ANN401  # playwright's
        self.complaints: list[str] = []
        self.requests: list[str] = []
        context = chromium.new_context(offline=True, **options)
        self.page = context.new_page()
        self.page.on("console", lambda one: self.complaints.append(one.text))
        self.page.on("pageerror", lambda one: self.complaints.append(str(one)))
        self.page.on("dialog", lambda one: self.complaints.append("dialog"))
        self.page.on("request", lambda one: self.requests.append(one.url))
        self.page.goto(file.as_uri(), timeout=TIMEOUT_MS)
        try:
            self.page.wait_for_selector(READY, state="attached", timeout=TIMEOUT_MS)
        except Exception as error:
            raise AssertionError(f"not ready: {self.complaints}") from error

    def readout(self) -> str:
        """Return what is said of the moment that is looked at."""
        return str(self.page.inner_text("#readout"))

    def slide(self, part: float) -> int:
        """Move the slider to a part of its length; return the moment."""
        moment = self.page.evaluate(
            """part => {
                const slider = document.getElementById("moment");
                slider.value = Math.floor(slider.max * part);
                slider.dispatchEvent(new Event("input"));
                return new Promise(done => requestAnimationFrame(() =>
                    requestAnimationFrame(() => done(Number(slider.value)))));
            }""",
            part,
        )
        return int(moment)
