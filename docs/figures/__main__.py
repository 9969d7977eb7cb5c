"""Draw the figures of the explanations: ``python -m docs.figures [FOLDER]``."""

import sys
from pathlib import Path

from docs.figures.bins import way_of_an_allocation
from docs.figures.reach import first_fit_with_reach
from docs.figures.recycling import pages_before_and_after

FIGURES = {
    "first-fit.svg": first_fit_with_reach,
    "recycling.svg": pages_before_and_after,
    "allocate.svg": way_of_an_allocation,
}
HOME = Path(__file__).parents[1] / "explanation" / "pictures"


def draw(folder: Path) -> None:
    """Write every figure to a folder."""
    for name, figure in FIGURES.items():
        (folder / name).write_text(figure(), "utf-8", newline="\n")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HOME)
