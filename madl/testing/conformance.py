"""The tests that every backend has to pass, as one class to subclass."""

from madl.testing.choosing import NumaTests, PrefaultTests
from madl.testing.committing import CommitTests, HugePagesTests, RemapTests
from madl.testing.content import CopyTests, FillTests, HostAccessTests, ViewTests
from madl.testing.mandatory import MandatoryTests
from madl.testing.ordering import StreamTests
from madl.testing.sharing import ShareTests
from madl.testing.walk import PoolTests


class BackendConformance(
    MandatoryTests,
    CommitTests,
    RemapTests,
    HugePagesTests,
    PrefaultTests,
    NumaTests,
    HostAccessTests,
    CopyTests,
    FillTests,
    ViewTests,
    StreamTests,
    ShareTests,
    PoolTests,
):
    """Subclass it in your tests and override ``make_backend``; pytest does the rest.

    ``make_stream``, ``bytes_of_view`` and ``most_nbytes`` may be overridden too. A
    test whose capability the backend does not claim is skipped, so claiming one is
    what turns its tests on.
    """
