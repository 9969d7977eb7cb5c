"""Uses of madl that are wrong, one a line: type checkers must refuse each.

It is checked, never run. A comment that silences nothing is an error itself, so a line
that a checker came to accept fails.
"""

import madl
import madl.integrations.numba
import madl.integrations.torch
import madl.testing
from madl.backends import hookimpl
from madl.backends.protocol import Backend, Capability, Reservation
from madl.testing import FakeBackend


def names() -> None:
    madl.alocate(64)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    madl.testing.FakeBackends()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    madl.backends("cpu")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    hookimpl(firstresults=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def sizes(pool: madl.Pool) -> None:
    pool.allocate(1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.allocate(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.allocate(b"64 MiB")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.trim(keep=0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.Pool(limit=2.5e9)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.empty((1.5, 2), "float32")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def options(pool: madl.Pool) -> None:
    madl.Pool("cpu", "2 GiB")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    madl.Pool(fit="worst")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.Pool(huge_pages="always")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.Pool(limits="2 GiB")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    madl.Pool(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.allocate(64, 128)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    pool.allocate(64, tag=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.allocate(64, device=0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pool.on_out_of_memory(lambda: None)  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]
    madl.configure(limits="2 GiB")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    madl.configure(recycle=7.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.use_pool("cpu")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def handles(memory: madl.Memory) -> None:
    memory.nbytes = 7  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    memory.ptr  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    memory[3]  # type: ignore[index]  # pyright: ignore[reportArgumentType]
    memory.fill("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    memory.as_array("float32", 2.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    text: str = memory.tobytes()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    madl.Spillable(memory, to="disk")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.Spillable(memory.tobytes())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.share(memory.memoryview())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    del text


def figures(pool: madl.Pool) -> None:
    pool.stats().live_bytes  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    pool.stats().live_nbytes = 0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    pool.stats()["live_nbytes"]  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    kept: str = pool.trim()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    del kept


def recordings() -> None:
    madl.record(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.record("run.trace", 3)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    madl.tag(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.keep_stacks("deep")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def errors(error: madl.OutOfMemoryError) -> None:
    error.nbytes  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    os_error: OSError = error  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    del os_error


def integrations(pool: madl.Pool) -> None:
    madl.integrations.torch.use_pool(pool)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.integrations.numba.use_pool("cuda:0")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    madl.integrations.numba.pools()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


class Forgetful:
    """No backend: it cannot release what it reserves."""

    device = "forgetful:0"
    capabilities = Capability.NONE
    granularity = alignment = 4096

    def reserve(self, nbytes: int) -> Reservation:
        return Reservation(None, nbytes, None)


class Loose(FakeBackend):
    """A backend that changes what a method takes."""

    def reserve(self, nbytes: str) -> Reservation:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return Reservation(None, int(nbytes), None)


def backends() -> None:
    madl.Pool(Forgetful())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    backend: Backend = Forgetful()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    FakeBackend(fail_on_call="first")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    del backend
