"""What CONTRIBUTING.md lists is what there is."""

import configparser
import re
import tomllib

from tests.pages import ROOT, blocks, needs_pages

pytestmark = needs_pages

PAGE = "CONTRIBUTING.md"


def missing(names: list[str]) -> list[str]:
    text = (ROOT / PAGE).read_text("utf-8")
    return [name for name in names if f"`{name}`" not in text]


def test_the_layers_are_those_that_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    [contract] = settings["tool"]["importlinter"]["contracts"]

    [figure] = blocks(PAGE, "text")

    shown = [re.split(" {2,}", line)[0] for line in figure.splitlines()]
    assert ["__main__", *shown] == [layer.strip("()") for layer in contract["layers"]]


def test_no_tox_environment_is_left_out() -> None:
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(ROOT / "tox.ini", "utf-8")

    assert missing(settings["tox"]["env_list"].split()) == []


def test_no_nox_session_is_left_out() -> None:
    sessions = re.findall(
        r"^@nox\.session\ndef (\w+)",
        (ROOT / "noxfile.py").read_text("utf-8"),
        re.MULTILINE,
    )

    assert sessions
    assert missing(sessions) == []
