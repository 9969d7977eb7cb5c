"""Take the pictures of ``madl view`` that README and tutorial show.

``python -m docs.screenshots FOLDER``, in which the tutorial's train.trace.gz lies:
``nox -s tutorial`` does both. The browser is Debian's: chromium.
"""

import sys
import tempfile
from pathlib import Path

from madl.diagnostics import example_path
from madl.diagnostics.histories import open_history
from madl.diagnostics.view import view_page
from tests.browser.chromium import Tab, browser

PICTURES = Path(__file__).parent / "pictures"
WIDTH, HEIGHT = 1280, 1060


def main() -> None:
    """Write the pictures."""
    sources = {
        "tutorial": str(Path(sys.argv[1]) / "train.trace.gz"),
        "resnet50-train": str(example_path("resnet50-train")),
    }
    with browser() as chromium, tempfile.TemporaryDirectory() as folder:
        for name, source in sources.items():
            history = open_history(source)
            page = Path(folder, f"{name}.html")
            page.write_text(view_page(history), "utf-8")
            tab = Tab(
                chromium,
                page,
                viewport={"width": WIDTH, "height": HEIGHT},
                color_scheme="light",
            )
            tab.slide(history.peak_moment / history.last_moment)
            tab.page.screenshot(path=PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
