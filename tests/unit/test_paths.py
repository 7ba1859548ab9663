"""Folders, locks and files that are whole or not there."""

import threading
import time
from pathlib import Path

import pytest

from swapmoe import paths


def test_everything_lies_below_the_configured_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SWAPMOE_CACHE_DIR", str(tmp_path / "naïve dir"))
    top = tmp_path / "naïve dir"
    assert paths.source_dir("b1") == top / "source" / "b1"
    assert paths.build_dir("k") == top / "build" / "k"
    assert paths.logs_dir().is_dir()
    assert paths.downloads_dir() == top / "downloads"
    monkeypatch.delenv("SWAPMOE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert "swapmoe" in paths.cache_dir().parts


def test_a_failed_write_keeps_the_old_file_and_leaves_no_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "a.txt"
    paths.atomic_write_text(file, "old\n")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        paths.atomic_write_text(file, "new\n")
    assert file.read_bytes() == b"old\n"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a.txt"]


def test_receipts_lie_beside_the_thing_and_survive_damage(tmp_path: Path) -> None:
    thing = tmp_path / "build" / "key"
    assert paths.read_receipt(thing) is None
    paths.write_receipt(thing, {"tree": "1"})
    assert paths.read_receipt(thing) == {"tree": "1"}
    assert paths.receipt_path(thing) == tmp_path / "build" / "key.receipt.json"
    for damaged in ("{", "[]", "\x00"):
        paths.receipt_path(thing).write_text(damaged)
        assert paths.read_receipt(thing) is None


def test_a_second_holder_waits_and_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []

    def second() -> None:
        with paths.lock(tmp_path / "thing"):
            order.append("second")

    with paths.lock(tmp_path / "thing"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert capsys.readouterr().err.count("waiting for another swapmoe") == 1
