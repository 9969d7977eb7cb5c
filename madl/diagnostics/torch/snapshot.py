"""Read what ``torch.cuda.memory._dump_snapshot`` writes: segments, blocks, events."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from madl.diagnostics.torch.fields import Fields
from madl.diagnostics.torch.models.settings import (
    UNLIMITED,
    AllocatorSettings,
    settings_of_text,
)
from madl.diagnostics.torch.pickle import PICKLE_LIMIT_NBYTES, read_plain_pickle
from madl.diagnostics.traces.lines import (
    PICKLE_START,
    TraceSource,
    head_of,
    path_of,
    read_whole,
)
from madl.errors import FileFormatError

RECORD_LIMIT = 1 << 22
"""Of blocks, and of events: one list may stand in many places of a pickle."""
_FRAMES_LOOKED_AT = 256
_LINE_LIMIT = 1 << 31
_SIZE_LIMIT = 1 << 64
MOVES = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"}
MOVES |= {"segment_map", "segment_unmap", "oom"}
"""What changes memory, or failed to. A ``free_requested`` block is not free yet."""


class TorchBlock(NamedTuple):
    """A part of a segment."""

    address: int
    nbytes: int
    requested_nbytes: int
    is_live: bool
    """Allocated, or freed while another stream may still use it."""
    place: str | None


class TorchSegment(NamedTuple):
    """What PyTorch took from the device in one piece, or mapped in a row."""

    device: int
    address: int
    nbytes: int
    stream: int
    blocks: tuple[TorchBlock, ...]


class TorchEvent(NamedTuple):
    """An entry of a device's trace."""

    action: str
    address: int
    nbytes: int
    stream: int
    place: str | None
    device_free_nbytes: int | None = None
    """What the device had left, at an ``oom``."""


class TorchSnapshot(NamedTuple):
    """A snapshot of PyTorch's allocator on all devices."""

    path: str
    name: str
    segments: tuple[TorchSegment, ...]
    events: tuple[tuple[TorchEvent, ...], ...]
    """By device; of what ``MOVES`` names."""
    settings: AllocatorSettings

    def events_of(self, device: int) -> tuple[TorchEvent, ...]:
        """Return the events of a device, which may be none."""
        return self.events[device] if device < len(self.events) else ()

    def ran_out(self, device: int) -> bool:
        """Whether a request failed on a device, as far as the events go back."""
        return any(event.action == "oom" for event in self.events_of(device))

    @property
    def devices(self) -> list[int]:
        """The devices of which anything is known."""
        named = {segment.device for segment in self.segments}
        return sorted(named.union(n for n, events in enumerate(self.events) if events))


def is_pickle(source: TraceSource) -> bool:
    """Return whether the file starts as a pickle does; errors are of ``head_of``."""
    return head_of(source, 1) == PICKLE_START


def read_torch_snapshot(source: TraceSource) -> TorchSnapshot:
    """Return the snapshot in a file of ``torch.cuda.memory._dump_snapshot``.

    A pickle of ``torch.cuda.memory_snapshot()`` is read, too: the list of segments.

    Args:
        source: A path, or the bytes themselves; gzipped or plain.

    Raises:
        FileFormatError: It cannot be opened, is broken, or holds anything but plain
            containers, text and numbers. Nothing in it is ever called.
    """
    path = path_of(source)
    data = read_whole(source, "a pickle", PICKLE_LIMIT_NBYTES)
    content = read_plain_pickle(data, path)
    if isinstance(content, list):
        content = {"segments": content}
    root = Fields(content, path, "")
    places = _Places()
    return TorchSnapshot(
        path=path,
        name=PurePath(path).name.removesuffix(".gz").removesuffix(".pickle"),
        segments=_segments(root, places),
        events=_all_events(root, places),
        settings=_settings(root),
    )


class _Places:
    """Where in the program stacks point to: one text for each stack."""

    def __init__(self) -> None:
        # Stacks are shared, in a pickle and here. Ids stay valid: the file's dicts
        # live until all of it is read.
        self._known: dict[int, str | None] = {}

    def of(self, entry: Fields) -> str | None:
        frames = entry.values.get("frames")
        if not isinstance(frames, list):
            return None
        if id(frames) not in self._known:
            self._known[id(frames)] = _place(frames)
        return self._known[id(frames)]


def _place(frames: list[object]) -> str | None:
    """Return the place of a stack; what is wrong in a frame is as if it were not there.

    Where a block comes from is good to know, and no reason to refuse how large it is.
    """
    innermost = None
    for frame in frames[:_FRAMES_LOOKED_AT]:
        if not isinstance(frame, dict):
            continue
        file, name, line = (frame.get(key) for key in ("filename", "name", "line"))
        file, name = (text if isinstance(text, str) else "" for text in (file, name))
        innermost = innermost or name or file
        if file.endswith(".py") and not _is_of_torch(file):
            # Code without lines has -1, which PyTorch writes as a number of 64 bits.
            is_known = isinstance(line, int) and 0 < line < _LINE_LIMIT
            where = f"{file}:{line:d}" if is_known else file
            return f"{where} ({name})" if name else where
    return innermost or None


def _is_of_torch(file: str) -> bool:
    return "/torch/" in file.replace("\\", "/") or file.startswith("torch/")


def _segments(root: Fields, places: _Places) -> tuple[TorchSegment, ...]:
    segments, blocks = list[TorchSegment](), 0
    for entry in root.dicts("segments"):
        segment = TorchSegment(
            entry.device(),
            entry.address("address"),
            entry.nbytes("total_size"),
            entry.stream(),
            tuple(_blocks(entry, places)),
        )
        blocks += 1 + len(segment.blocks)
        _bound(entry, blocks, "segments and blocks")
        segments.append(segment)
    return tuple(segments)


def _blocks(segment: Fields, places: _Places) -> Iterator[TorchBlock]:
    start = address = segment.address("address")
    end = start + segment.nbytes("total_size")
    for entry in segment.dicts("blocks"):
        if entry.has("address"):  # older versions leave it out: blocks have no gaps
            address = entry.address("address")
        nbytes = entry.nbytes("size")
        if not start <= address <= address + nbytes <= end:
            entry.refuse("size", f"must lie in its segment, got {nbytes}")
        is_live = entry.text("state").startswith("active")
        asked, place = _asked(entry, places) if is_live else (0, None)
        yield TorchBlock(address, nbytes, asked or nbytes, is_live, place)
        address += nbytes


def _asked(block: Fields, places: _Places) -> tuple[int, str | None]:
    """Return the bytes that were asked for, if that is known, and where."""
    if block.has("requested_size"):
        return block.nbytes("requested_size"), places.of(block)
    if block.has("history"):  # up to PyTorch 2.0; the latest use comes first
        for use in block.dicts("history"):
            nbytes = use.nbytes("real_size") if use.has("real_size") else 0
            return nbytes, places.of(use) or places.of(block)
    return 0, places.of(block)


def _all_events(root: Fields, places: _Places) -> tuple[tuple[TorchEvent, ...], ...]:
    if not root.has("device_traces"):
        return ()
    found, count = list[tuple[TorchEvent, ...]](), 0
    for device, entries in enumerate(root.values_of("device_traces")):
        key = f"device_traces[{device}]"
        one = Fields({key: entries}, root.path, "")
        count += 1 + len(one.values_of(key))
        _bound(root, count, "events")
        events = (_event(entry, places) for entry in one.dicts(key))
        found.append(tuple(event for event in events if event is not None))
    return tuple(found)


def _event(entry: Fields, places: _Places) -> TorchEvent | None:
    action = entry.text("action")
    if action not in MOVES:
        return None
    is_oom = action == "oom"
    return TorchEvent(
        action,
        0 if is_oom else entry.address("addr"),
        entry.nbytes("size"),
        entry.stream(),
        places.of(entry) if action in {"alloc", "oom"} else None,
        entry.nbytes("device_free") if is_oom and entry.has("device_free") else None,
    )


def _settings(root: Fields) -> AllocatorSettings:
    """Return the settings of the process: as it set them, then as PyTorch read them."""
    if not root.has("allocator_settings"):
        return AllocatorSettings()
    said = Fields(root.values["allocator_settings"], root.path, "allocator_settings.")
    text = said.text("PYTORCH_CUDA_ALLOC_CONF") or said.text("PYTORCH_ALLOC_CONF")
    try:
        settings = settings_of_text(text)
    except ValueError as error:
        said.refuse("PYTORCH_CUDA_ALLOC_CONF", str(error))
    if said.values.get("expandable_segments") is True:
        settings = settings._replace(expandable_segments=True)
    if said.has("max_split_size"):
        most = said.integer("max_split_size", -_SIZE_LIMIT, _SIZE_LIMIT)
        if most > 0:  # PyTorch shows its largest size, for no limit, as -1
            settings = settings._replace(max_split_nbytes=min(most, UNLIMITED))
    if said.values.get("garbage_collection_threshold"):  # 0 is never
        threshold = said.part("garbage_collection_threshold")
        settings = settings._replace(garbage_collection_threshold=threshold)
    return settings


def _bound(entry: Fields, count: int, what: str) -> None:
    if count > RECORD_LIMIT:
        reason = f"the snapshot has more than {RECORD_LIMIT} {what}"
        raise FileFormatError(entry.path, 0, reason)
