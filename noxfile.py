"""Make something: `nox -l` lists what. Whether all is well is tox's to say."""

import os
import pathlib

import nox

nox.options.sessions = ["dist"]
PROJECT = nox.project.load_toml("pyproject.toml")
PURE = {"MADL_COMPILE": "0"}
COMPILED = {"MADL_COMPILE": "1"}
NUMPY_TESTS = (
    "--pyargs",
    "numpy._core.tests.test_multiarray",
    "numpy._core.tests.test_numeric",
    "numpy._core.tests.test_ufunc",
    "numpy.lib.tests.test_function_base",
    "-m",
    "not slow",
)
RESULTS = {"json": "json", "markdown": "md", "svg": "svg"}


@nox.session
def mutate(session: nox.Session) -> None:
    """Break the code on purpose, one line at a time; the tests must see each break."""
    session.install("--editable", ".", env=PURE)
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    session.run("python", "tests/mutate.py", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Let every call of every device fail, in every operation; say how many that were.

    OpenCL is PoCL, Debian's pocl-opencl-icd; CUDA and other systems are emulated, with
    gcc. The sums at the end are of two processes: CUDA's tests have their own.
    """
    session.install(".", env=COMPILED)
    session.install(*nox.project.dependency_groups(PROJECT, "devices"))
    backends = "tests/backends"
    session.run(
        "pytest",
        "-s",
        "--timeout=3000",
        "tests/property/test_faults.py",
        "tests/property/test_faulty_pool.py",
        f"{backends}/test_fault_sweeps.py",
        f"{backends}/test_system_faults.py",
        f"{backends}/test_windows_fault_sweeps.py",
        f"{backends}/emulated/test_fault_sweeps.py",
        f"{backends}/opencl/test_opencl_fault_sweeps.py",
        f"{backends}/test_cuda.py::test_the_suite_passes[test_fault_sweeps.py]",
        *session.posargs,
        env={"TEST_MADL_FAULTS": "all", "HYPOTHESIS_PROFILE": "nightly"},
    )


@nox.session
def month(session: nox.Session) -> None:
    """Allocate and free ten million times, sizes drifting; print each day's figures.

    It takes minutes, most of them in the linear reference. An argument is another
    number of operations.
    """
    session.install(".", env=COMPILED)
    session.run("python", "-m", "tests.month", *session.posargs)


@nox.session
def fuzz_readers(session: nox.Session) -> None:
    """Damage 10,000 files of each kind; every reader must read or refuse them.

    ``TEST_MADL_FUZZ_FILES`` changes how many.
    """
    session.install("--editable", ".", env=PURE)
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    count = os.environ.get("TEST_MADL_FUZZ_FILES", "10000")
    session.run(
        "pytest",
        "--timeout=3000",
        "tests/property/test_damaged_files.py",
        *session.posargs,
        env={"TEST_MADL_FUZZ_FILES": count},
    )


@nox.session
def fuzz_pool(session: nox.Session) -> None:
    """Try 10,000 random programs on pools of every kind: limits, streams, faults.

    ``HYPOTHESIS_PROFILE`` chooses another number; arguments are pytest's.
    """
    session.install(".", env=COMPILED)
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    names = ("pool", "whole_pool", "streams", "faults", "first_fit", "skiplist")
    session.run(
        "pytest",
        "--timeout=7200",
        *(session.posargs or [f"tests/property/test_{name}.py" for name in names]),
        env={"HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE", "nightly")},
    )


@nox.session
def fuzz_atheris(session: nox.Session) -> None:
    """Let atheris look for files that any reader does wrong with, a minute each.

    Arguments choose readers; ``TEST_MADL_FUZZ_SECONDS`` says for how long each. What it
    found on the way is in build/fuzz, and files that are a bug in build/fuzz/bugs: they
    belong into tests/fuzz/corpus. atheris has wheels for Linux and CPython up to 3.13.
    """
    session.install("--editable", ".", "atheris>=3", env=PURE)
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    seconds = os.environ.get("TEST_MADL_FUZZ_SECONDS", "60")
    corpus, folder = pathlib.Path("tests/fuzz/corpus"), pathlib.Path("build/fuzz")
    (folder / "bugs").mkdir(parents=True, exist_ok=True)
    for name in session.posargs or sorted(os.listdir(corpus)):
        (folder / name).mkdir(exist_ok=True)
        session.run(
            *("python", "-m", "tests.fuzz.atheris_reader", name),
            *(str(folder / name), str(corpus / name)),
            f"-max_total_time={seconds}",
            f"-artifact_prefix={folder}/bugs/{name}-",
            "-verbosity=0",
            "-print_final_stats=1",
        )


@nox.session
def soak(session: nox.Session) -> None:
    """Use pools in every way at once for ten minutes; the process may take no more.

    ``TEST_MADL_SOAK_S`` changes how long. Then, at length, the stress tests of threads
    and of forks.
    """
    session.install(".", env=COMPILED)
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    seconds = os.environ.get("TEST_MADL_SOAK_S", "600")
    session.run("python", "-P", "tests/soak.py", seconds, *session.posargs)
    session.run(
        "pytest",
        *(f"tests/processes/test_{name}.py" for name in ("thread_stress", "fork")),
        env={"TEST_MADL_STRESS_S": "10", "TEST_MADL_FORKS": "200"},
    )


@nox.session
def bench(session: nox.Session) -> None:
    """Compile madl, measure it beside its peers, and write build/bench/latest.*.

    The allocators that are preloaded, and PoCL, are Debian's: libjemalloc2,
    libmimalloc2.0, libtcmalloc-minimal4, pocl-opencl-icd. Arguments go on to
    ``python -m benchmarks``; with ``--gates`` it is the short run that may fail.
    """
    session.install(".", env=COMPILED)
    session.install(*nox.project.dependency_groups(PROJECT, "bench"))
    folder = "build/bench/latest"
    written = [f"--{kind}={folder}.{end}" for kind, end in RESULTS.items()]
    session.run("python", "-m", "benchmarks", *written, *session.posargs)


@nox.session
def numpy_suite(session: nox.Session) -> None:
    """Run NumPy's own tests while its arrays of 4 KiB and more come from a pool.

    It takes a few minutes. Arguments choose among the tests, as pytest's do.
    """
    session.install(".", env=COMPILED)
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    folder = "tests/numpy_suite"
    session.run(
        "pytest",
        f"--config-file={folder}/pytest.ini",
        "-p",
        "madl_route",
        *(session.posargs or NUMPY_TESTS),
        env={"PYTHONPATH": folder, "TEST_MADL_ROUTE_THRESHOLD": "4 KiB"},
    )


@nox.session
def gpu(session: nox.Session) -> None:
    """Test CUDA on a GPU and measure it beside its peers: build/bench/gpu*.json.

    With torch, the models of ``madl whatif`` are held against what PyTorch reserves.

    Arguments are the packages to compare with, as ``cupy-cuda13x torch``; without any,
    it is the driver alone. ``TEST_MADL_CUDA_DRIVER=emulated`` tries all of this where
    there is no GPU; its figures mean nothing.
    """
    session.install(".[cuda]", env=COMPILED)
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    session.install("cuda-core", "numba-cuda", *session.posargs)
    driver = os.environ.get("TEST_MADL_CUDA_DRIVER", "real")
    required = {"MADL_REQUIRE": "cuda", "TEST_MADL_CUDA_DRIVER": driver}
    session.run("pytest", "-s", "tests/backends/test_cuda.py", env=required)
    measure = ["python", "-m", "benchmarks.gpu", "--json=build/bench/gpu.json"]
    models = ["python", "-m", "benchmarks.gpu_whatif"]
    session.run(*models, "--json=build/bench/gpu-whatif.json")
    if driver != "emulated":
        session.run(*measure)
        return
    folder = session.create_tmp()
    session.run("python", "tests/backends/cuda/emulator.py", folder)
    emulated = {"LD_LIBRARY_PATH": folder, "EMULATED_CUDA": f"memory={64 << 30}"}
    session.run(*measure, "--quick", env=emulated)


@nox.session
def view(session: nox.Session) -> None:
    """Open pages of ``madl view`` in Chromium, in full: screenshots in build/view.

    The browser is Debian's: chromium. A page of 160,000 events has to open in three
    seconds, so nothing else should run meanwhile.
    """
    session.install(".[viz]", env=PURE)
    session.install(*nox.project.dependency_groups(PROJECT, "test"), "playwright")
    required = {"MADL_REQUIRE": "browser", "TEST_MADL_SCREENSHOTS": "build/view"}
    session.run("pytest", "-s", "tests/browser", *session.posargs, env=required)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation's site: build/docs/index.html."""
    session.install(".", env=PURE)
    session.install(*nox.project.dependency_groups(PROJECT, "docs"))
    strict = ("--nitpicky", "--fail-on-warning", "--keep-going")
    session.run("sphinx-build", *strict, *session.posargs, "docs", "build/docs")
    session.run("python", "docs/links.py", "build/docs")


@nox.session
def tutorial(session: nox.Session) -> None:
    """Run the tutorial and put what it prints into it; draw all pictures anew.

    The browser is Debian's: chromium.
    """
    session.install(".[viz]", env=COMPILED)
    session.install(*nox.project.dependency_groups(PROJECT, "test"), "playwright")
    folder = session.create_tmp()
    session.run("python", "-m", "docs.rerun", "docs/tutorial.md", folder)
    session.run("python", "-m", "docs.figures")
    required = {"MADL_REQUIRE": "browser"}
    session.run("python", "-m", "docs.screenshots", folder, env=required)


@nox.session
def dask(session: nox.Session) -> None:
    """Test pools on Dask's workers; and, at length, what processes share."""
    session.install(".[dask]", env=PURE)
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    session.run(
        "pytest",
        *(f"tests/integration/test_{name}.py" for name in ("dask", "dask_example")),
        "tests/processes/test_shared_processes.py",
        "tests/processes/test_shared_failures.py",
        env={"TEST_MADL_EXITS": "50"},
    )


@nox.session
def ecosystem(session: nox.Session) -> None:
    """Test beside other libraries at length; every program has to end 50 times.

    Arguments are other versions of them, as ``torch==2.12.1``, which is built for CUDA
    and takes some GB: then PyTorch itself accepts the C functions.
    """
    session.install(".", env=COMPILED)
    session.install(*nox.project.dependency_groups(PROJECT, "ecosystem"))
    if session.posargs:
        session.install(*session.posargs)
    names = "torch or jax or docs or exchange or cuda_core or cupy or numba"
    session.run(
        "pytest",
        *(f"tests/integration/test_{name}.py" for name in ("torch", "jax")),
        "tests/integration/test_ecosystem_docs.py",
        "tests/backends/test_cuda.py",
        "-k",
        f"{names} or cuda_pool or how_to",
        env={
            "TEST_MADL_EXITS": "50",
            "PYTEST_ADDOPTS": "--timeout=1800",
            "MADL_REQUIRE": "cuda,ecosystem",
            "JAX_PLATFORMS": "cpu",
        },
    )


@nox.session
def dist(session: nox.Session) -> None:
    """Build the sdist and the wheels into dist/, and try each as its users will.

    A wheel of pure Python, and on Linux a compiled one for each CPython that is found;
    wheels for other systems are made by the workflow ``release``. It takes a minute or
    two for each Python. An argument is another folder.
    """
    session.install("--editable", ".", env=PURE)
    session.install(*nox.project.dependency_groups(PROJECT, "dist"))
    session.run("python", "-m", "tools.release", *session.posargs)


@nox.session
def wine(session: nox.Session) -> None:
    """Run all tests that Windows can run in CPython for Windows, under wine.

    ``tox -e wine`` runs those in which Windows differs. Arguments are pytest's.
    """
    names = ("backends", "property", "unit")
    shared = (
        f"tests/processes/test_shared_{name}.py" for name in ("memory", "processes")
    )
    tests = (*(f"tests/{name}" for name in names), *shared)
    session.run("python", "tools/wine/run.py", *(session.posargs or tests))


@nox.session
def portability(session: nox.Session) -> None:
    """Run madl on other machines and systems; print what ran, and what did not and why.

    Arguments choose among i386, seccomp, arm64-16k, s390x, armhf, riscv64, pyodide,
    cpython-3.14, cpython-3.15 and pypy. They install what they need of Debian's
    packages, and keep downloads in ~/.cache/madl-portability, or where
    TEST_MADL_PORTABILITY_CACHE says. Two runs at once do not disturb each other.
    """
    session.install("--editable", ".", env=PURE)
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    session.run("python", "-m", "tools.portability", *session.posargs)


@nox.session
def sanitize(session: nox.Session) -> None:
    """Test the compiled core under GCC's address and undefined-behaviour sanitizers."""
    sanitizers = "-fsanitize=address,undefined"
    # A freelist would hide what is used after it ended.
    strict = "-fno-sanitize-recover=undefined -DCYTHON_USE_FREELISTS=0"
    # A build folder of its own: objects of other builds are neither used nor replaced.
    folder = pathlib.Path(session.create_tmp())
    config = folder / "build.cfg"
    config.write_text(f"[build]\nbuild_base = {folder / 'build'}\n")
    session.install(
        ".",
        env={
            "MADL_COMPILE": "1",
            "DIST_EXTRA_CONFIG": str(config),
            "CC": "gcc",
            "CFLAGS": f"-g -fno-omit-frame-pointer {sanitizers} {strict}",
            "LDFLAGS": sanitizers,
        },
    )
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    library = session.run(
        "gcc", "-print-file-name=libasan.so", external=True, silent=True
    )
    folders = ("unit", "property", "processes/test_thread_stress.py")
    session.run(
        "pytest",
        *(session.posargs or [f"tests/{folder}" for folder in folders]),
        # It measures the process, of which the sanitizers' own memory is most.
        "--deselect=tests/unit/diagnostics/traces/test_files.py"
        "::test_half_a_million_events_need_less_than_200_mb",
        env={
            "LD_PRELOAD": str(library).strip(),
            "ASAN_OPTIONS": "detect_leaks=0",  # CPython leaves much to the exit
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
        },
    )
