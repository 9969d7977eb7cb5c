"""The fake device passes the tests of every backend, with all that it can claim."""

from madl.backends.protocol import Backend, Capability
from madl.testing import BackendConformance, FakeBackend, FakeStream

ALL = ~Capability.SHARE


class TestFakeOfOffsets(BackendConformance):
    def make_backend(self) -> FakeBackend:
        return FakeBackend()


class TestFakeWithoutCapabilities(BackendConformance):
    def make_backend(self) -> FakeBackend:
        return FakeBackend(capabilities=Capability.NONE)


class TestFakeWithEverything(BackendConformance):
    def make_backend(self) -> FakeBackend:
        return FakeBackend(capabilities=ALL, total_nbytes=8 << 20)

    def make_stream(self, backend: Backend) -> FakeStream:
        assert isinstance(backend, FakeBackend)
        return backend.make_stream()


class TestFakeThatTheHostCannotReach(TestFakeWithEverything):
    def make_backend(self) -> FakeBackend:
        return FakeBackend(
            capabilities=ALL
            & ~(Capability.HOST_ACCESS | Capability.COMMIT)
            & ~(Capability.REMAP | Capability.HUGE_PAGES | Capability.HANDLE_PAGES)
            & ~(Capability.GUARD_PAGES | Capability.SETTLE | Capability.DLPACK)
            & ~(Capability.PINNED | Capability.MANAGED),
            total_nbytes=8 << 20,
        )
