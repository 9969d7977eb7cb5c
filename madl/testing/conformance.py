"""The tests that every backend has to pass, as one class to subclass."""

from madl.testing.choosing import (
    GuardPagesTests,
    HandlePagesTests,
    HugePagesTests,
    NumaTests,
    PrefaultTests,
)
from madl.testing.committing import CommitTests, RemapTests, SettleTests
from madl.testing.content import (
    FillTests,
    HostAccessTests,
    ViewTests,
    ZeroWhenNewTests,
)
from madl.testing.copying import CopyTests, PeerCopyTests, StagedCopyTests
from madl.testing.exporting import CudaArrayTests, DlpackTests
from madl.testing.mandatory import MandatoryTests
from madl.testing.ordering import CaptureTests, StreamTests
from madl.testing.sharing import ShareTests
from madl.testing.walk import PoolTests


class BackendConformance(
    MandatoryTests,
    CommitTests,
    RemapTests,
    SettleTests,
    HugePagesTests,
    HandlePagesTests,
    GuardPagesTests,
    PrefaultTests,
    NumaTests,
    HostAccessTests,
    ZeroWhenNewTests,
    CopyTests,
    PeerCopyTests,
    StagedCopyTests,
    FillTests,
    ViewTests,
    StreamTests,
    CaptureTests,
    DlpackTests,
    CudaArrayTests,
    ShareTests,
    PoolTests,
):
    """Subclass it in your tests and override ``make_backend``; pytest does the rest.

    ``make_stream``, ``bytes_of_view`` and ``most_nbytes`` may be overridden too. A
    test whose capability the backend does not claim is skipped, so claiming one is
    what turns its tests on.
    """
