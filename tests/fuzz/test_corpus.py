"""What fuzzing has found stays found: every file of the corpus, in seconds."""

import pytest

from tests.fuzz.readers import CORPUS, READERS, read

LARGEST_NBYTES = 4096
"""Of a file: the corpus is part of the repository."""


def test_each_reader_has_files() -> None:
    folders = {folder.name for folder in CORPUS.iterdir()}

    assert folders == set(READERS)


@pytest.mark.parametrize("name", READERS)
def test_sound_files_are_read_and_others_refused(name: str) -> None:
    paths = sorted((CORPUS / name).iterdir())

    taken = {path.name: read(name, path.read_bytes()) for path in paths}

    assert {path for path, is_read in taken.items() if is_read} == {
        path for path in taken if path.startswith("seed-")
    }
    assert len(taken) > 10


def test_no_file_is_large() -> None:
    sizes = [path.stat().st_size for path in CORPUS.glob("*/*")]

    assert max(sizes) <= LARGEST_NBYTES
