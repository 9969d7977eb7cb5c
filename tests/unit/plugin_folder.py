"""Distributions with plugins, as ``pip`` would leave them, in a folder."""

from pathlib import Path

WORKING = """
from madl.backends import hookimpl
from madl.backends.sim import SimBackend

class Backend(SimBackend):
    def __init__(self, device):
        super().__init__()
        self.device = device

@hookimpl
def madl_devices():
    return ["{kind}:0", "{kind}:1"]

@hookimpl
def madl_open(device):
    if device in ("{kind}", "{kind}:0", "{kind}:1", "{kind}_fast:0"):
        return Backend(device)
"""


class PluginFolder:
    """A folder on ``sys.path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: list[str] = []

    def install(self, kind: str, code: str = WORKING, *, name: str = "") -> str:
        """Install a distribution of one plugin; return the name of its module."""
        distribution = name or f"madl-{kind}"
        module = self.write(distribution.replace("-", "_"), kind, code)
        info = self.path / f"{module}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n"
        )
        (info / "entry_points.txt").write_text(f"[madl]\n{kind} = {module}\n")
        return module

    def write(self, module: str, kind: str, code: str = WORKING) -> str:
        """Write a module, but install no distribution; return its name."""
        text = code.replace("{kind}", kind)
        (self.path / f"{module}.py").write_text(text)
        self.modules.append(module)
        return module
