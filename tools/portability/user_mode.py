"""Other processors by qemu's user mode: their Python, this kernel.

It is lax: it accepts any advice. So it shows word size, byte order and numbers of
calls, and nothing about a kernel.
"""

from pathlib import Path

from tools.portability import roots, suite
from tools.portability.shell import need

SUITES = {"armhf": "bookworm", "riscv64": "trixie", "s390x": "bookworm"}
VERSIONS = {"bookworm": "3.11", "trixie": "3.13"}
QEMU = {"armhf": "arm"}
MOVES_BADLY = ("armhf",)  # those with 32 bits; see there
WITHOUT_MOVES = Path(__file__).with_name("without_moves.py")


def main(architecture: str) -> str:
    """Run a smoke test and a replay."""
    suite_name = SUITES[architecture]
    qemu = f"qemu-{QEMU.get(architecture, architecture)}-static"
    need(**{qemu.replace("-", "_"): "qemu-user-static"})
    folder = roots.root(architecture, architecture, suite_name, roots.PYTHON)
    program = folder / "usr" / "bin" / f"python{VERSIONS[suite_name]}"
    python = [qemu, "-L", folder, program]
    if architecture in MOVES_BADLY:
        python.append(WITHOUT_MOVES)
    site = roots.wheels("pure-wheels", "3.11", ("any",), *suite.COMMAND_LINE)
    seen = suite.run_smoke(python, site)
    return f"{seen}; {suite.run_replay(python, site)}"
