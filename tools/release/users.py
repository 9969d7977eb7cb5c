"""What a user does with a wheel: install it into nothing, and follow the README."""

import re
import sys
import tomllib
from pathlib import Path

from tools.release.build import environment
from tools.release.command import CHECKOUT, run

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]


def quick_start() -> tuple[list[str], str]:
    """Return the README's first call of ``madl``, and all of its Python."""
    text = (CHECKOUT / "README.md").read_text("utf-8")
    [first, *_] = re.findall(r"\bmadl (replay [^\n`&]*)", text)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks, "the README has no Python"
    return first.split(), "\n".join(blocks)


def try_wheel(wheel: Path, python: Path) -> None:
    """Install a wheel into an empty environment, and run the quick start there."""
    replay, code = quick_start()
    with environment(python) as user:
        away = user.parents[1]
        run(user, "-m", "pip", "install", "--quiet", wheel, folder=away)
        is_compiled = "py3-none-any" not in wheel.name
        seen = f"from madl import hotpath as h; assert h.IS_COMPILED is {is_compiled}"
        run(user, "-c", seen, folder=away)
        run(user.with_name("madl"), *replay, folder=away)
        run(user, "-c", code, folder=away)


def try_extras(wheel: Path) -> None:
    """Have pip find all that each extra asks for; nothing is installed."""
    with environment(Path(sys.executable)) as user:
        for extra in PROJECT["optional-dependencies"]:
            how = ("install", "--quiet", "--dry-run", "--only-binary=:all:")
            run(user, "-m", "pip", *how, f"{wheel}[{extra}]")
