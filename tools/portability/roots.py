"""Python of another processor or version, from Debian's packages, without a chroot."""

import shutil
import sys
from pathlib import Path

from tools.portability.shell import cache, fetch, making, need, run, scratch

PYTHON = ("python3-minimal", "libpython3-stdlib", "libc6")


def mirror() -> str:
    """Return where apt gets Debian from."""
    lines = run(["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)"])
    found = {line.split()[1] for line in lines.splitlines() if line[:7] == "Debian "}
    return min(found)


def root(name: str, architecture: str, suite: str, packages: tuple[str, ...]) -> Path:
    """Return a folder with packages of an architecture unpacked, cached by its name."""
    need(mmdebstrap="mmdebstrap")
    folder = cache() / name
    if folder.exists():
        return folder
    with making(folder) as half:
        fetch(
            f"Python for {architecture}",
            [
                *("mmdebstrap", "-q", "--variant=extract"),
                "--aptopt=Acquire::Check-Valid-Until false",
                f"--architectures={architecture}",
                *(f"--include={','.join(packages)}", suite, half, mirror()),
            ],
            cache(),
        )
        for link in ("bin", "lib", "lib64", "sbin"):
            if not (half / link).exists():
                (half / link).symlink_to(f"usr/{link}")
    return folder


def make_native(folder: Path, program: str, loader: str, triplet: str) -> Path:
    """Let a program of a root run outside of it, with the root's own libraries."""
    need(patchelf="patchelf")
    original = (folder / "usr" / "bin" / program).resolve()
    python = original.with_name(f"{original.name}-native")
    if python.exists():
        return python
    places = [
        folder / top / triplet / part
        for part in ("", "blas", "lapack")
        for top in ("lib", "usr/lib")
    ]
    path = ":".join(str(place) for place in places if place.is_dir())
    set_loader = ("--set-interpreter", folder / loader)
    with scratch(program) as made:
        half = Path(shutil.copy2(original, made))
        run(["patchelf", *set_loader, "--force-rpath", "--set-rpath", path, half])
        half.replace(python)
    return python


def wheels(name: str, version: str, platforms: tuple[str, ...], *what: str) -> Path:
    """Return a folder with distributions for another Python, as wheels only."""
    folder = cache() / name
    if folder.exists():
        return folder
    with making(folder) as half:
        fetch(
            f"wheels for Python {version}",
            [
                *(sys.executable, "-m", "pip", "install", "-q", "--target", half),
                *("--only-binary=:all:", "--python-version", version),
                *("--implementation", "cp"),
                *(f"--platform={platform}" for platform in platforms),
                *what,
            ],
            cache(),
        )
    return folder
