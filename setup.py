"""Compile the core where a C compiler is; all else is in pyproject.toml.

``MADL_COMPILE=1`` compiles or fails, ``=0`` stays pure Python, unset tries. An sdist
of one version has the same bytes wherever and whenever it is made.
"""

import gzip
import os
import tarfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.sdist import sdist

WISH = os.environ.get("MADL_COMPILE", "")
# A .py is compiled once a .pxd beside it gives C types to what it calls an int.
CORE = ("skiplist", "pages", "first_fit")
SOURCES = [f"madl/core/{name}.py" for name in CORE]
SOURCES += [f"madl/hotpath/{name}.pyx" for name in ("_compiled", "_journal")]
NATIVE = ("device_pools", "functions", "numpy_handler")
SOURCES += [f"madl/native/{name}.pyx" for name in NATIVE]
HEADERS = ["madl/hotpath", "madl/native"]
OFF = ("annotation_typing", "boundscheck", "wraparound", "initializedcheck")
DIRECTIVES = dict.fromkeys(OFF, False)  # annotated ints would contradict the .pxd
DIRECTIVES |= {"language_level": 3, "cdivision": True, "freethreading_compatible": True}


def extensions() -> list[Extension]:
    """Return what to compile; nothing where Cython is missing and not insisted on."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        if WISH == "1":
            raise
        print("madl: no Cython here, so the core stays pure Python")
        return []
    names = [source.rpartition(".")[0].replace("/", ".") for source in SOURCES]
    found = cythonize(
        [
            Extension(name, [source], include_dirs=HEADERS)
            for name, source in zip(names, SOURCES, strict=True)
        ],
        build_dir="build/cython",
        compiler_directives=DIRECTIVES,
    )
    for extension in found:
        if os.name == "posix":
            extension.extra_compile_args = ["-O3"]
        extension.optional = WISH != "1"  # set last: cythonize drops it
    return found


class SameSdist(sdist):
    """Leaves out who made an archive, when, and in which order files were found."""

    def make_archive(
        self, base_name: str, *_: object, base_dir: str, **__: object
    ) -> str:
        """Pack the folder ``base_dir`` in the one way; return the archive's name."""
        made = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))  # 1980, as ZIP has

        def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode, entry.mtime = 0o755 if entry.isdir() else 0o644, made
            return entry

        name = f"{base_name}.tar.gz"
        with (
            open(name, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=made) as zipped,
            tarfile.open(fileobj=zipped, mode="w") as archive,
        ):
            for path in sorted(Path(base_dir).rglob("*"), key=Path.as_posix):
                archive.add(path, path.as_posix(), recursive=False, filter=plain)
        return name


if WISH not in ("", "0", "1"):
    raise SystemExit(f"MADL_COMPILE must be 0, 1 or unset, got {WISH!r}")
setup(
    cmdclass={"sdist": SameSdist},
    ext_modules=[] if WISH == "0" else extensions(),
)
