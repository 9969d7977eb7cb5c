"""What sweeps of faults have done in this process: figures that can be cited."""

import dataclasses


@dataclasses.dataclass
class Tally:
    """Counts, which the summary of a run shows when there are any."""

    faults: int = 0
    """Calls that were made to fail."""
    operations: int = 0
    """Operations of the public API that were run while a fault was armed, and after."""

    def __str__(self) -> str:
        return f"{self.faults:,} faults injected, {self.operations:,} operations run"


tally = Tally()
