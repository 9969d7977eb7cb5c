"""WebAssembly: CPython of Pyodide on Node, 32 bits, with OS pages of 64 KiB."""

from pathlib import Path

from tools.portability import roots, suite
from tools.portability.outcome import SkippedError
from tools.portability.shell import CHECKOUT, cache, fetch, making, need, run

SCRIPT = Path(__file__).with_name("pyodide.mjs")


def main() -> str:
    """Run a smoke test and a replay."""
    need(node="nodejs", npm="npm")
    if int(run(["node", "--version"]).strip().lstrip("v").partition(".")[0]) < 18:
        raise SkippedError("needs Node 18 or later")
    folder = cache() / "pyodide"
    if not folder.exists():
        with making(folder) as half:
            fetch("Pyodide", ["npm", "install", "--silent", "pyodide"], half)
    site = roots.wheels("pure-wheels", "3.11", ("any",), *suite.COMMAND_LINE)
    # Node looks for packages beside the script, so it is given where they are.
    module = folder / "node_modules" / "pyodide" / "pyodide.mjs"
    said = run(["node", SCRIPT, module, CHECKOUT, site, suite.EXAMPLE])
    return "; ".join(said.strip().splitlines()[-2:])
