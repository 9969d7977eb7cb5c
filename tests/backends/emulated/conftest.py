"""Emulated systems. Each test ends without a misuse, and with nothing mapped."""

import ctypes
import mmap
import platform
import shutil
from collections.abc import Callable, Iterator

import pytest

from madl.backends.host import HostMemory, linux_calls
from tests.backends.emulated.posix import OS_PAGES, Posix, build, open_memory

BSDS = ("freebsd", "netbsd", "openbsd")


@pytest.fixture(scope="session")
def posix_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler to build the emulation with")
    try:
        return build(tmp_path_factory.mktemp("posix"))
    except OSError as error:
        if platform.machine() != "x86_64" or ctypes.sizeof(ctypes.c_void_p) == 8:
            raise
        pytest.skip(f"the C compiler builds for 64 bits only: {error}")


@pytest.fixture
def emulate(
    posix_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Posix]]:
    """Return what starts an emulated system."""
    started: list[Posix] = []

    def start(system: str) -> Posix:
        monkeypatch.setattr(mmap, "PAGESIZE", OS_PAGES[system])
        started.append(Posix(posix_library, system))
        return started[-1]

    yield start
    for posix in started:
        assert (posix.misuses, posix.mapped_nbytes) == (0, 0)


@pytest.fixture
def macos(emulate: Callable[[str], Posix]) -> Posix:
    return emulate("macos")


@pytest.fixture(params=BSDS)
def bsd(emulate: Callable[[str], Posix], request: pytest.FixtureRequest) -> Posix:
    return emulate(request.param)


@pytest.fixture
def emulated_freebsd(emulate: Callable[[str], Posix]) -> Posix:
    return emulate("freebsd")


@pytest.fixture
def android(emulate: Callable[[str], Posix], monkeypatch: pytest.MonkeyPatch) -> Posix:
    posix = emulate("android")
    monkeypatch.setattr(linux_calls, "libc", posix.library)
    calls = linux_calls.LinuxCalls(posix.library)
    monkeypatch.setattr(linux_calls, "system", calls)
    return posix


@pytest.fixture(params=OS_PAGES)
def posix(request: pytest.FixtureRequest) -> Posix:
    """Return each of the systems in turn."""
    found: Posix = (
        request.getfixturevalue(request.param)
        if request.param in ("android", "macos")
        else request.getfixturevalue("emulate")(request.param)
    )
    return found


@pytest.fixture
def memory(posix: Posix) -> HostMemory:
    """Return each system's memory in turn."""
    return open_memory(posix)
