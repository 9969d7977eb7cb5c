"""Compile the core where a C compiler is; all else is in pyproject.toml.

``MADL_COMPILE=1`` compiles or fails, ``=0`` stays pure Python, unset tries.
"""

import os

from setuptools import Extension, setup

WISH = os.environ.get("MADL_COMPILE", "")
# A .py is compiled once a .pxd beside it gives C types to what it calls an int.
CORE = ("skiplist", "pages", "first_fit")
SOURCES = [f"madl/core/{name}.py" for name in CORE]
HOTPATH = ("_compiled", "_device", "_journal", "_native", "_numpy")
SOURCES += [f"madl/hotpath/{name}.pyx" for name in HOTPATH]
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
            Extension(name, [source], include_dirs=["madl/hotpath"])
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


if WISH not in ("", "0", "1"):
    raise SystemExit(f"MADL_COMPILE must be 0, 1 or unset, got {WISH!r}")
setup(ext_modules=[] if WISH == "0" else extensions())
