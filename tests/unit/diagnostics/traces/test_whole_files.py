"""A file is whole or not there, whatever ends the writing."""

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

import madl
from madl.diagnostics.traces.writer import TraceWriter, write_whole
from tests.disk import no_file_larger_than
from tests.programs import run

OLD, NEW = b"old" * 10, b"new" * 100_000
ONLY_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX's files")


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_is_written_or_replaced(tmp_path: Path, is_there: bool) -> None:
    target = tmp_path / "page.html"
    if is_there:
        target.write_bytes(OLD)

    write_whole(target, NEW)

    assert content_of(tmp_path) == {"page.html": NEW}


@pytest.mark.parametrize("is_there", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, is_there: bool) -> None:
    target = tmp_path / "page.html"
    if is_there:
        target.write_bytes(OLD)

    with no_file_larger_than(1000), pytest.raises(OSError, match="large") as caught:
        write_whole(target, NEW)

    assert content_of(tmp_path) == ({"page.html": OLD} if is_there else {})
    assert caught.value.filename == str(target)


@pytest.mark.parametrize("event", ["os.chmod", "os.rename"])
def test_an_interruption_on_the_way_leaves_what_was_there(
    tmp_path: Path, event: str
) -> None:
    target = tmp_path / "page.html"
    target.write_bytes(OLD)

    status, printed, errors = run(f"""
import sys
from madl.diagnostics.traces.writer import write_whole

def interrupt(event, arguments):
    if event == {event!r}:
        raise KeyboardInterrupt

sys.addaudithook(interrupt)
try:
    write_whole({str(target)!r}, bytes(1000))
except KeyboardInterrupt:
    print("interrupted")
""")

    assert (status, printed, errors) == (0, "interrupted\n", "")
    assert content_of(tmp_path) == {"page.html": OLD}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    target = tmp_path / "no" / "page.html"

    with pytest.raises(FileNotFoundError) as caught:
        write_whole(target, NEW)

    assert caught.value.filename == str(target)


@ONLY_POSIX
def test_whoever_could_not_read_it_cannot_now(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.touch(0o600)

    write_whole(target, NEW)

    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@ONLY_POSIX
def test_the_file_that_a_link_names_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "page.html", tmp_path / "link.html"
    target.write_bytes(OLD)
    link.symlink_to(target)

    write_whole(link, NEW)

    assert link.is_symlink()
    assert target.read_bytes() == NEW


@ONLY_POSIX
def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()

    write_whole(pipe, NEW)
    reader.join()

    assert read == [NEW]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@ONLY_POSIX
def test_a_pipe_whose_name_is_a_number_is_written_as_it_is() -> None:
    ours, theirs = os.pipe()  # where links such as /dev/stdout lead

    write_whole(f"/dev/fd/{theirs}", OLD)  # it is small enough to wait in the pipe
    os.close(theirs)

    with open(ours, "rb") as pipe:
        assert pipe.read() == OLD


@ONLY_POSIX
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_that_the_system_does_not_follow_is_refused(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that another user has laid in a sticky folder."""
    target, link = tmp_path / "important", tmp_path / "page.html"
    if is_there:
        target.write_text("important")
    link.symlink_to(target)

    def refuse(path: object, flags: int, mode: int = 0o777, **given: int) -> int:
        if path == link:
            raise PermissionError(13, "Permission denied", str(link))
        return open_file(path, flags, mode, **given)  # type: ignore[arg-type]  # as given

    open_file = os.open
    monkeypatch.setattr(os, "open", refuse)

    for write in (lambda: write_whole(link, b"new"), lambda: TraceWriter(link)):
        with pytest.raises(PermissionError, match=r"page\.html"):
            write()
    with pytest.raises(PermissionError), madl.record(link):
        pass

    assert target.exists() == is_there
    assert not is_there or target.read_text() == "important"
    assert sorted(tmp_path.iterdir()) == sorted([link, *[target] * is_there])
