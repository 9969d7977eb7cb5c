"""Find links inside of the built site that lead nowhere: ``python docs/links.py SITE``.

Sphinx warns of those that it resolves itself; this looks at the pages as they are.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the names that links to it may end with."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.names: set[str] = {""}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect from one element."""
        for name, value in attrs:
            if name == "id" and value:
                self.names.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def lost_links(site: Path) -> list[str]:
    """Return the links to files or names that do not exist, with their pages."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    lost = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve()
            target = path if not parts.path else target
            known = target in pages and unquote(parts.fragment) in pages[target].names
            if not (known or (target.exists() and not parts.fragment)):
                lost.append(f"{path.relative_to(site.resolve())}: {link}")
    return lost


if __name__ == "__main__":
    lost = lost_links(Path(sys.argv[1]))
    print("\n".join(lost) or "every link inside of the site leads somewhere")
    sys.exit(bool(lost))
