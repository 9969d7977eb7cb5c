"""A progress bar on stderr, for long work; nothing where nobody looks."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


class EventProgress:
    """Counts events on a terminal; hidden anywhere else."""

    def __init__(
        self, what: str, of: int | None = None, *, hidden: bool = False
    ) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=hidden or not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=of)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def update(self, events: int, of: int | None = None) -> None:
        """Move on by so many events of all there are, if that is known now."""
        self._bar.update(self._task, total=of, advance=events)
