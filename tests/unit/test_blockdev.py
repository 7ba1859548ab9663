"""Read-ahead and page cache: set, checked, and brought back."""

import os
from pathlib import Path

import pytest

from swapmoe import blockdev
from swapmoe.blockdev import Device, device_of, forget, read_ahead, resident_bytes
from swapmoe.errors import ToolError


@pytest.fixture
def device(tmp_path: Path) -> Device:
    file = tmp_path / "read_ahead_kb"
    file.write_text("8192\n")
    return Device("vdx", file)


def number_of(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def test_read_ahead_is_set_and_brought_back(device: Device) -> None:
    with read_ahead(device, 128) as before:
        assert before == 8192
        assert device.read_ahead.read_text() == "128"
    assert device.read_ahead.read_text() == "8192"


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_read_ahead_is_brought_back_whatever_happens(
    device: Device, failure: type[BaseException]
) -> None:
    with pytest.raises(failure), read_ahead(device, 128):
        raise failure
    assert device.read_ahead.read_text() == "8192"


def test_read_ahead_that_somebody_changes_is_an_error(device: Device) -> None:
    refused = pytest.raises(ToolError, match="the read-ahead of vdx was changed while measuring")
    with refused, read_ahead(device, 128):
        device.read_ahead.write_text("4096")
    assert device.read_ahead.read_text() == "8192"


def test_read_ahead_that_cannot_be_set_is_an_error(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path, _text: str) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    refused = pytest.raises(ToolError, match="cannot set the read-ahead of vdx to 128 KiB")
    with refused, read_ahead(device, 128):
        pytest.fail("it is not set")


def test_device_of_a_whole_disk(tmp_path: Path) -> None:
    bdi = tmp_path / "class/bdi" / number_of(tmp_path)
    bdi.mkdir(parents=True)
    (bdi / "read_ahead_kb").write_text("128")
    assert device_of(tmp_path, tmp_path).read_ahead == bdi / "read_ahead_kb"


def test_device_of_a_partition_is_that_of_its_disk(tmp_path: Path) -> None:
    disk = tmp_path / "devices/sda"
    (disk / "sda1").mkdir(parents=True)
    (disk / "queue").mkdir()
    (disk / "queue/read_ahead_kb").write_text("128")
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / "dev/block" / number_of(tmp_path)).symlink_to(disk / "sda1")
    found = device_of(tmp_path, tmp_path)
    assert (found.name, found.read_ahead) == ("sda1", disk / "queue/read_ahead_kb")


def test_filesystem_without_a_device_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no read-ahead setting"):
        device_of(tmp_path, tmp_path)


def test_forget_empties_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(4 << 20))
    assert resident_bytes(path) == 4 << 20
    forget([path], drop_caches=tmp_path / "drop_caches")
    assert resident_bytes(path) < 1 << 20


def test_forget_fails_when_pages_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * (1 << 20))
    monkeypatch.setattr(blockdev, "resident_bytes", lambda _path: 1 << 20)
    with pytest.raises(ToolError, match="still in the page cache") as caught:
        forget([path], drop_caches=tmp_path / "no" / "drop_caches")
    assert "No such file" in "\n".join(caught.value.evidence)
