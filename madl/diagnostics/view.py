"""``madl view``: a history as one self-contained HTML page, under a strict CSP."""

import base64
import hashlib
import html
import json
from importlib.resources import files
from string import Template

from madl.diagnostics.history import History
from madl.diagnostics.runs.page import page_data


def view_page(history: History) -> str:
    """Return the page.

    Names in it come from untrusted files. They are inserted as text only, and no script
    runs but those that the page's Content-Security-Policy names by their hash.

    Raises:
        ImportError: plotly, which draws the curves, is not installed.
    """
    data = json.dumps(page_data(history), separators=(",", ":"), allow_nan=False)
    plotly, script = _plotly(), _part("page.js")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {_hash(plotly)} {_hash(script)}"
    )
    return Template(_part("page.html")).substitute(
        policy=html.escape(policy),
        title=html.escape(history.name),
        style=_part("page.css"),
        # Escaped: "<" could end the script element, or start a comment in it.
        data=data.replace("<", "\\u003c"),
        plotly=plotly,
        script=script,
    )


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(
            f"plotly cannot be imported: {error}; pip install 'madl[viz]'"
        ) from error
    return str(get_plotlyjs())


def _part(name: str) -> str:
    return (files("madl.diagnostics") / "page" / name).read_text("utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
