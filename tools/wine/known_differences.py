"""A plugin for pytest: tests that are known to fail under wine must fail."""

import tomllib
from pathlib import Path

import pytest

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what is for other systems."""
    try:
        place = collection_path.relative_to(config.rootpath).as_posix()
    except ValueError:
        return None
    return True if place in TABLE["other_systems"] else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is listed; a listed test of a file that is run has to be there."""
    found = {item.nodeid: item for item in items}
    files = {nodeid.partition("::")[0] for nodeid in found}
    for nodeid, reason in {**TABLE["fails"], **TABLE["not_run"]}.items():
        if nodeid in found:
            is_run = nodeid in TABLE["fails"]
            mark = pytest.mark.xfail(strict=True) if is_run else pytest.mark.skip
            found[nodeid].add_marker(mark(reason=reason))
        elif nodeid.partition("::")[0] in files:
            raise pytest.UsageError(f"known differences: there is no test {nodeid}")
