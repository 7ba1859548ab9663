"""Where sources, builds, downloads and logs live, and how files there are written safely."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from swapmoe.console import note


def cache_dir() -> Path:
    """The cache root: ``SWAPMOE_CACHE_DIR``, else this user's cache folder."""
    configured = os.environ.get("SWAPMOE_CACHE_DIR")
    if configured:
        return Path(configured).expanduser().absolute()
    return platformdirs.user_cache_path("swapmoe", appauthor=False)


def source_dir(tag: str) -> Path:
    """The tool's own git checkout of llama.cpp at ``tag``."""
    return cache_dir() / "source" / tag


def build_dir(key: str) -> Path:
    """The build folder for ``key``."""
    return cache_dir() / "build" / key


def logs_dir() -> Path:
    """The folder for logs, created on use."""
    return _made(cache_dir() / "logs")


def downloads_dir() -> Path:
    """The folder for downloaded archives, created on use."""
    return _made(cache_dir() / "downloads")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock of ``path`` (a file beside it); says so once when it has to wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = filelock.FileLock(path.parent / f"{path.name}.lock")
    try:
        file.acquire(timeout=0)
    except filelock.Timeout:
        note(f"waiting for another swapmoe that holds {file.lock_file}")
        file.acquire()
    try:
        yield
    finally:
        file.release()


def atomic_write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 with LF so that ``path`` holds the old or the new content, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def receipt_path(thing: Path) -> Path:
    """The receipt file that lies beside ``thing``."""
    return thing.parent / f"{thing.name}.receipt.json"


def write_receipt(thing: Path, data: Mapping[str, Any]) -> None:
    """Record what ``thing`` was made from."""
    atomic_write_text(receipt_path(thing), json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def read_receipt(thing: Path) -> dict[str, Any] | None:
    """The receipt of ``thing``, or None when there is none or it cannot be read."""
    try:
        data = json.loads(receipt_path(thing).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
