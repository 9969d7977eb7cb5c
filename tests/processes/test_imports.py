"""Threads that use the package for the first time at once."""

from tests.programs import run

TWO_IMPORTS = """
import sys
import threading
from importlib import import_module

SEEN = []


class Between:
    # As the package begins to import its modules, another thread imports one of them.
    def find_spec(self, name, path, target=None):
        if name == "madl.diagnostics.snapshot_json":
            sys.meta_path.remove(self)
            other.start()
            other.join(0.5)


def import_other():
    SEEN.append(import_module("madl.diagnostics.recording").__name__)


other = threading.Thread(target=import_other)
sys.meta_path.insert(0, Between())
import_module("madl.diagnostics")
other.join()
print(*SEEN)
"""


def test_a_module_is_imported_while_its_package_is() -> None:
    assert run(TWO_IMPORTS) == (0, "madl.diagnostics.recording\n", "")
