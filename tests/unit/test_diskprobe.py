"""The disk probe on small files."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from swapmoe import diskprobe
from swapmoe.diskprobe import ALIGNMENT, probe
from swapmoe.errors import ToolError


def write(path: Path, size: int) -> Path:
    path.write_bytes(os.urandom(size))
    return path


def refuse(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let opening for direct I/O fail."""
    real = os.open

    def fake(path: Any, flags: int, *rest: Any) -> int:
        if flags & 0o40000:
            raise OSError(code, os.strerror(code), str(path))
        return real(path, flags, *rest)

    monkeypatch.setattr(diskprobe, "_O_DIRECT", 0o40000)
    monkeypatch.setattr(os, "open", fake)


def test_each_slice_once_at_any_depth(tmp_path: Path) -> None:
    files = [write(tmp_path / "a", 100_000), write(tmp_path / "b", 41_000)]
    for depth in (1, 3, 16):
        found = probe(files, 10_000, depth)
        assert (found.reads, found.depth) == (14, depth)
        # Unaligned slices take the pages around them.
        assert 140_000 <= found.total <= 14 * (10_000 + 2 * ALIGNMENT)
        assert found.bandwidth == pytest.approx(140_000 / found.seconds)
        assert 0 < found.latency <= found.seconds


def test_ends_with_the_time_or_the_bytes(tmp_path: Path) -> None:
    file = write(tmp_path / "a", 1_000_000)
    assert 1 <= probe([file], 1000, 4, seconds=0).reads <= 4
    assert probe([file], 1000, 2, most=5000).reads == 5


def test_reads_through_the_cache_where_direct_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "a", 50_000)
    refuse(monkeypatch, errno.EINVAL)
    found = probe([file], 5000, 2)
    assert (found.reads, found.direct) == (10, False)
    assert not probe([file], 5000, 2, direct=False).direct


def test_other_errors_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a", 50_000)
    refuse(monkeypatch, errno.EMFILE)
    with pytest.raises(ToolError) as raised:
        probe([file], 5000, 2)
    assert str(file) in raised.value.evidence[0]


def test_a_file_shorter_than_a_slice(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="as long as one read of 5000 bytes"):
        probe([write(tmp_path / "a", 4999)], 5000, 1)
