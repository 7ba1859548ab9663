"""What a disk gives for the reads of expert streaming: slices at random places, many at once."""

import contextlib
import errno
import mmap
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from swapmoe.errors import ToolError

ALIGNMENT = 4096
_O_DIRECT = getattr(os, "O_DIRECT", 0)
_REFUSALS = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Probe:
    """What one probe showed; sizes in bytes, times in seconds."""

    depth: int
    slice_bytes: int
    reads: int
    total: int
    seconds: float
    latency: float
    direct: bool

    @property
    def bandwidth(self) -> float:
        """Bytes of slices per second; what was read around them for alignment does not count."""
        return self.reads * self.slice_bytes / self.seconds


def probe(
    paths: Sequence[Path],
    slice_bytes: int,
    depth: int,
    *,
    seconds: float = 3.0,
    most: int = 1 << 31,
    direct: bool = True,
    seed: int = 0,
) -> Probe:
    """Read slices at random places of the files, `depth` at a time, each place at most once.

    Reads go past the page cache; where the filesystem refuses that (or `direct` is off), through it
    after dropping it. Ends after `seconds`, after `most` bytes, or when every place was read.
    Raises ToolError when a file cannot be read, none is as long as a slice, or on Windows.
    """
    if not hasattr(os, "preadv"):
        raise ToolError("this system has no reads at a position that fill a buffer in place")
    places = _places(paths, slice_bytes, seed)
    with contextlib.ExitStack() as stack:
        try:
            used, files = _open(stack, paths, direct)
            reader = _Reader(files, places[: max(1, most // slice_bytes)], slice_bytes)
            started = time.monotonic()
            reader.deadline = started + seconds
            with ThreadPoolExecutor(depth) as pool:
                latencies = [
                    latency
                    for job in [pool.submit(reader.run) for _ in range(depth)]
                    for latency in job.result()
                ]
            took = time.monotonic() - started
        except OSError as error:
            raise ToolError(
                "the disk probe cannot read the file",
                evidence=[f"{error.filename or paths[0]}: {error.strerror}"],
            ) from error
    return Probe(
        depth=depth,
        slice_bytes=slice_bytes,
        reads=len(latencies),
        total=reader.total,
        seconds=took,
        latency=median(latencies),
        direct=used,
    )


def _places(paths: Sequence[Path], slice_bytes: int, seed: int) -> list[tuple[int, int]]:
    """Return (file, offset) of every whole slice, shuffled."""
    places = [
        (number, offset)
        for number, path in enumerate(paths)
        for offset in range(0, path.stat().st_size - slice_bytes + 1, slice_bytes)
    ]
    if not places:
        raise ToolError(f"no file is as long as one read of {slice_bytes} bytes")
    random.Random(seed).shuffle(places)
    return places


def _open(
    stack: contextlib.ExitStack, paths: Sequence[Path], direct: bool
) -> tuple[bool, list[int]]:
    """Open the files; returns whether reads go past the page cache."""
    if direct and _O_DIRECT:
        try:
            files = [os.open(path, os.O_RDONLY | _O_DIRECT) for path in paths]
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
        else:
            for file in files:
                stack.callback(os.close, file)
            try:
                os.preadv(files[0], [mmap.mmap(-1, ALIGNMENT)], 0)
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
            else:
                return True, files
    files = [os.open(path, os.O_RDONLY) for path in paths]
    for file in files:
        stack.callback(os.close, file)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    return False, files


class _Reader:
    """The places that are left, shared by the threads that read them."""

    def __init__(self, files: list[int], places: list[tuple[int, int]], slice_bytes: int) -> None:
        self._files = files
        self._next: Iterator[tuple[int, int]] = iter(places)
        self._slice_bytes = slice_bytes
        self._lock = threading.Lock()
        self.deadline = 0.0
        self.total = 0

    def run(self) -> list[float]:
        """Read until time or places are up; returns the seconds of each read."""
        latencies: list[float] = []
        with mmap.mmap(-1, self._slice_bytes + 2 * ALIGNMENT) as buffer, memoryview(buffer) as view:
            while place := self._take(bool(latencies)):
                file, offset = place
                first = offset // ALIGNMENT * ALIGNMENT
                last = -(-(offset + self._slice_bytes) // ALIGNMENT) * ALIGNMENT
                started = time.monotonic()
                count = os.preadv(self._files[file], [view[: last - first]], first)
                latencies.append(time.monotonic() - started)
                with self._lock:
                    self.total += count
        return latencies

    def _take(self, may_end: bool) -> tuple[int, int] | None:
        with self._lock:
            if may_end and time.monotonic() >= self.deadline:
                return None
            return next(self._next, None)
