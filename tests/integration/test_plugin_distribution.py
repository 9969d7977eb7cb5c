"""Two distributions with plugins, installed by pip: one that works, one that is broken.

The environment they are installed into sees this one's packages, madl among them.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

import madl as madl_under_test

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "plugin"
DISTRIBUTIONS = {"sample": EXAMPLE, "broken": HERE / "broken_plugin"}


class Environment:
    """A virtual environment of its own, with both plugins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: dict[str, Path] = {}
        try:
            venv.create(folder / "venv", with_pip=True)
        except subprocess.CalledProcessError:
            pytest.skip("this Python brings no pip for a virtual environment")
        programs = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
        self.python = programs / "python"
        self._share_packages()

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run its Python, away from any checkout."""
        return subprocess.run(
            [self.python, *arguments],
            capture_output=True,
            encoding="utf-8",
            cwd=self.folder,
            env={**os.environ, "NVME_FOLDERS": str(self.folder), "PYTHONPATH": ""},
            check=False,
        )

    def evaluate(self, code: str) -> str:
        """Run code, which must end well; return what it prints."""
        done = self.run("-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def install(self) -> None:
        """Install both plugins: by this environment's setuptools, or by pip's own."""
        for name, source in DISTRIBUTIONS.items():
            self.sources[name] = self.folder / name
            shutil.copytree(source, self.sources[name])
        reasons = []
        for isolation in (["--no-build-isolation"], []):
            arguments = ["-m", "pip", "install", "--no-deps", *isolation]
            done = self.run(*arguments, *self.sources.values())
            if done.returncode == 0:
                return
            reasons += [x.strip() for x in done.stderr.splitlines() if "rror: " in x]
        pytest.skip(f"pip cannot build here, nor with an index: {reasons}")

    def _share_packages(self) -> None:
        shared = [path for path in sys.path if Path(path).name.endswith("-packages")]
        shared.append(str(Path(madl_under_test.__file__).parents[1]))
        purelib = self.evaluate(
            "import sysconfig; print(sysconfig.get_path('purelib'))"
        )
        (Path(purelib) / "shared.pth").write_text("\n".join(shared), "utf-8")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("plugins"))
    environment.install()
    return environment


@pytest.fixture(scope="module")
def info(environment: Environment) -> dict[str, Any]:
    done = environment.run("-m", "madl", "info", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_the_sample_opens_by_its_name(environment: Environment) -> None:
    code = (
        "import madl\n"
        "with madl.allocate('1 MiB', device='nvme:0') as memory:\n"
        "    memory.fill(7)\n"
        "    print(memory.device, set(memory.tobytes()))\n"
    )

    assert environment.evaluate(code) == "nvme:0 {7}"


def test_the_sample_is_among_the_devices(environment: Environment) -> None:
    found = environment.evaluate("import madl; print(*madl.devices())").split()

    assert {"cpu", "nvme:0", "sim"} <= set(found)


def test_the_sample_passes_the_tests_of_every_backend(environment: Environment) -> None:
    tests = environment.sources["sample"] / "tests"

    done = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", tests)

    summary = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0, done.stdout
    assert int(summary.split()[0]) >= 20
    assert "passed" in summary


def test_the_broken_one_does_not_hurt_the_host(environment: Environment) -> None:
    code = "import madl; print(madl.allocate(8).device, 'broken' in madl.backends())"

    assert environment.evaluate(code) == "cpu True"


def test_asking_for_the_broken_one_says_why(environment: Environment) -> None:
    code = (
        "import madl\n"
        "try:\n"
        "    madl.Pool('broken:0')\n"
        "except madl.BackendNotFoundError as error:\n"
        "    print(error.reason)\n"
    )

    assert environment.evaluate(code) == (
        "ImportError: libbroken.so.1: cannot open shared object file"
    )


def test_info_shows_both_with_their_versions(info: dict[str, Any]) -> None:
    assert info["plugins"] == [
        {
            "kind": "broken",
            "distribution": "madl-broken 0.3",
            "module": "madl_broken",
            "devices": [],
            "failure": "ImportError: libbroken.so.1: cannot open shared object file",
        },
        {
            "kind": "nvme",
            "distribution": "madl-nvme 1.0",
            "module": "madl_nvme",
            "devices": ["nvme:0"],
            "failure": "",
        },
    ]


def test_info_describes_the_device_of_the_sample(
    environment: Environment, info: dict[str, Any]
) -> None:
    described = info["devices"]["nvme:0"]

    assert described["capabilities"] == "HOST_ACCESS, DESCRIBE"
    assert described["folder"] == str(environment.folder)


def test_info_prints_what_is_broken_in_words(environment: Environment) -> None:
    done = environment.run("-m", "madl", "info")

    text = " ".join(done.stdout.replace("│", " ").split())
    assert "madl-nvme 1.0 (madl_nvme): nvme:0" in text
    assert "madl-broken 0.3 (madl_broken): ImportError: libbroken.so.1" in text
    assert "Traceback" not in done.stdout + done.stderr
