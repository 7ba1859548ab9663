"""What lies under a file: its device's read-ahead, and how much of it is in the page cache."""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swapmoe.errors import ToolError

SYS = Path("/sys")
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
# Some metadata pages come back at once; a model that was not dropped is far above this.
_COLD_SHARE = 0.01


@dataclass(frozen=True)
class Device:
    """The device of a file's filesystem; `read_ahead` is the kernel's file for it (KiB)."""

    name: str
    read_ahead: Path


def device_of(path: Path, sys: Path = SYS) -> Device:
    """Return the device that holds `path`. Raises ToolError when it has no read-ahead setting."""
    number = path.stat().st_dev
    key = f"{os.major(number)}:{os.minor(number)}"
    block = sys / "dev/block" / key
    candidates = [sys / "class/bdi" / key / "read_ahead_kb", block / "queue/read_ahead_kb"]
    for file in candidates:
        if file.is_file():
            return Device(block.resolve().name if block.exists() else key, file)
    if block.exists():
        file = block.resolve().parent / "queue/read_ahead_kb"
        if file.is_file():
            return Device(block.resolve().name, file)
    raise ToolError(
        f"no read-ahead setting for the filesystem of {path}",
        evidence=[f"device {key}", *(f"{file}: not there" for file in candidates)],
        hint="put the model on a local disk, or keep the read-ahead as it is",
    )


@contextlib.contextmanager
def read_ahead(device: Device, kib: int) -> Iterator[int]:
    """Set a device's read-ahead in KiB; yields the old value and brings it back afterwards.

    Raises ToolError when it cannot be set, and at the end when somebody else has changed it.
    """
    before = int(device.read_ahead.read_text())
    try:
        device.read_ahead.write_text(str(kib))
        if int(device.read_ahead.read_text()) != kib:
            raise OSError(0, "the kernel did not take the value")
    except OSError as error:
        raise ToolError(
            f"cannot set the read-ahead of {device.name} to {kib} KiB",
            evidence=[f"{device.read_ahead}: {error.strerror}", f"it is {before} KiB now"],
            hint="run as root, or keep the read-ahead as it is",
        ) from None
    try:
        yield before
        found = int(device.read_ahead.read_text())
    finally:
        device.read_ahead.write_text(str(before))
    if found != kib:
        raise ToolError(
            f"the read-ahead of {device.name} was changed while measuring",
            evidence=[f"{device.read_ahead}: {found} KiB instead of {kib}"],
            hint="measure again, with no other benchmark beside",
        )


def resident_bytes(path: Path) -> int:
    """Return how much of a file is in the page cache."""
    size = path.stat().st_size
    libc = ctypes.CDLL(None, use_errno=True)
    vector = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    # ctypes gives addresses of writable memory only; a private mapping counts, nothing is written.
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE) as mapping:
        first = ctypes.c_char.from_buffer(mapping)
        result = libc.mincore(ctypes.byref(first), ctypes.c_size_t(size), vector)
        del first
    if result != 0:
        raise OSError(ctypes.get_errno(), "mincore failed")
    pages = np.ctypeslib.as_array(vector) & 1
    return int(np.count_nonzero(pages)) * mmap.PAGESIZE


def drop(path: Path) -> None:
    """Ask for a file to leave the page cache; pages that others map stay. Does what it can."""
    if not hasattr(os, "posix_fadvise"):
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def forget(paths: list[Path], drop_caches: Path = DROP_CACHES) -> None:
    """Drop files (and everything else, when allowed) from the page cache.

    Raises ToolError when much of the files is still there afterwards.
    """
    for path in paths:
        drop(path)
    refusal = "dropped"
    try:
        drop_caches.write_text("3")
    except OSError as error:
        refusal = str(error.strerror)
    for path in paths:
        left, size = resident_bytes(path), path.stat().st_size
        if left > max(size * _COLD_SHARE, 64 * mmap.PAGESIZE):
            raise ToolError(
                f"{path.name} is still in the page cache: a cold start cannot be measured",
                evidence=[f"{left} of {size} bytes are resident", f"{drop_caches}: {refusal}"],
                hint="run as root, and end other programs that have the file open",
            )
