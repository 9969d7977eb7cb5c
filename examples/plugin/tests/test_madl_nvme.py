"""The files pass the tests of every backend."""

import os
from pathlib import Path

import pytest
from madl_nvme import NvmeBackend, madl_devices, madl_open

from madl import Pool
from madl.backends.protocol import Backend
from madl.testing import BackendConformance


class TestNvme(BackendConformance):
    most_nbytes = 64 << 20  # else half of what the disk has left

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_backend(self) -> Backend:
        return NvmeBackend("nvme:0", self.folder)


def test_each_folder_is_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = str(tmp_path / "absent")
    monkeypatch.setenv("NVME_FOLDERS", os.pathsep.join([str(tmp_path), absent]))

    assert madl_devices() == ["nvme:0"]
    assert madl_open("nvme:1") is None


def test_a_pool_opens_it_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVME_FOLDERS", str(tmp_path))

    with Pool("nvme", limit="8 MiB") as pool, pool.allocate("1 MiB") as memory:
        memory.fill(7)

        assert (memory.device, memory.tobytes()[-3:]) == ("nvme:0", b"\x07\x07\x07")
