"""A real Linux with OS pages of 16 KiB, as Android has: arm64, emulated whole."""

import re
import shutil
import sys
from pathlib import Path

from tools.portability import roots, suite
from tools.portability.outcome import FailedError, SkippedError
from tools.portability.shell import CHECKOUT, cache, fetch, need, run, scratch

INIT = Path(__file__).with_name("vm_init.py")
_PACKAGE = "linux-image-arm64-16k"
MACHINE = (
    *("-M", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on", "-smp", "2"),
    *("-m", "2G", "-nic", "none", "-nographic", "-no-reboot"),
    *("-append", "console=ttyAMA0 quiet panic=-1"),
)


def main() -> str:
    """Boot it, with Python as its first process; return what the guest saw."""
    need(
        mmdebstrap="mmdebstrap",
        qemu_system_aarch64="qemu-system-arm",
        cpio="cpio",
        lz4="lz4",
        dpkg_deb="dpkg",
    )
    kernel = _kernel()
    folder = roots.root("arm64", "arm64", "trixie", roots.PYTHON)
    platforms = tuple(f"manylinux_2_{minor}_aarch64" for minor in (17, 28, 31, 34))
    site = roots.wheels("arm64-wheels", "3.13", platforms, *suite.TESTS)
    with scratch("arm64-16k") as work:
        image = _image(folder, site, work)
        said = run(
            [*("qemu-system-aarch64", *MACHINE), "-kernel", kernel, "-initrd", image],
            timeout_s=570,
        )
    seen = re.findall(r"^GUEST (.*?)\r?$", said, re.MULTILINE)
    if not seen or seen[-1] != "0":
        raise FailedError(f"the guest did not end well:\n{said[-3000:]}")
    return "; ".join(seen[:-1])


def _kernel() -> Path:
    """Return Debian's kernel for pages of 16 KiB."""
    kernel = cache() / "vmlinuz-arm64-16k"
    if not kernel.exists():
        with scratch("kernel") as work:
            _fetch_kernel(work).replace(kernel)
    return kernel


def _fetch_kernel(work: Path) -> Path:
    """Download and unpack it into a folder."""
    for part in ("lists/partial", "archives/partial"):
        (work / part).mkdir(parents=True, exist_ok=True)
    sources = work / "sources.list"
    sources.write_text(f"deb [arch=arm64] {roots.mirror()} trixie main\n")
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "Dir::State::status": "/dev/null",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/nonexistent",
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work,
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    fetch("the list of arm64 packages", [*apt, "update"], work)
    said = run([*apt, "install", "-s", "--no-install-recommends", _PACKAGE])
    found = re.search(r"^Inst (linux-image-\d\S*16k) ", said, re.MULTILINE)
    if found is None:
        raise SkippedError("Debian has no kernel with pages of 16 KiB any more")
    fetch("a kernel with pages of 16 KiB", [*apt, "download", found[1]], work)
    package = next(work.glob("linux-image-*.deb"))
    run(["dpkg-deb", "-x", package, work / "kernel"])
    return next((work / "kernel" / "boot").glob("vmlinuz*"))


def _image(folder: Path, site: Path, work: Path) -> Path:
    """Return an initial file system with Python, its packages, madl and its tests."""
    tree = work / "tree"
    shutil.copytree(folder, tree, symlinks=True, ignore=_unneeded)
    shutil.copytree(site, tree / "site")
    for name in ("madl", "tests", "tools"):
        source, target = CHECKOUT / name, tree / "checkout" / name
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", tree / "checkout")
    shutil.copy(INIT, tree / "init")
    (tree / "init").chmod(0o755)
    image = work / "image.cpio.lz4"
    pack = 'cd "$1" && find . | cpio -o -H newc --quiet | lz4 -l -q > "$2"'
    run(["sh", "-ec", pack, "sh", tree, image])
    return image


def _unneeded(path: str, names: list[str]) -> set[str]:
    """Return what the guest has no use for; devices would be read without end."""
    return {"dev", "doc", "locale", "man", "var"} & set(names)


if __name__ == "__main__":
    sys.stdout.write(main() + "\n")
