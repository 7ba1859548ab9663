"""A memory limit that counts the page cache too: one cgroup (v1 or v2) for one program."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from swapmoe.errors import ToolError

HINT = "run as root, or: systemd-run --user --scope -p Delegate=yes COMMAND"
_REMOVE_SECONDS = 10.0
_PREFIX = "swapmoe-"

Reader = Callable[[str], str]


@dataclass(frozen=True)
class MemoryGroup:
    """A cgroup with a memory limit; sizes in bytes."""

    path: Path
    version: int

    def wrap(self, argv: list[str]) -> list[str]:
        """Return the command line that joins the group and then becomes `argv`."""
        join = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        return ["/bin/sh", "-c", join, str(self.path), *argv]

    def peak(self) -> int | None:
        """Most memory used so far, page cache included; None where the kernel does not count it."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        try:
            return int((self.path / name).read_text())
        except OSError:
            return None

    def oom_kills(self) -> int:
        """How many processes of the group were killed for want of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        lines = (self.path / name).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@contextlib.contextmanager
def memory_limit(
    limit: int, mounts: Path = Path("/proc/mounts"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[MemoryGroup]:
    """Make a group limited to `limit` bytes without swap, and remove it (and its pages) afterwards.

    Raises ToolError when the limit cannot be set.
    """
    refusals: list[str] = []
    for parent, version in _parents(mounts.read_text(), own.read_text()):
        path = parent / f"{_PREFIX}{os.getpid()}"
        _remove_abandoned(parent)
        try:
            group = _make(path, version, limit)
        except OSError as error:
            refusals.append(f"{path}: {error.strerror}")
            _remove(path)
            continue
        try:
            yield group
        finally:
            _remove(path)
        return
    raise ToolError(
        "cannot limit memory: no usable cgroup",
        evidence=refusals or ["no memory controller in /proc/mounts"],
        hint=HINT,
    )


def _parents(mounts: str, own: str) -> Iterator[tuple[Path, int]]:
    """Yield the groups to try as parents: this process's own, then the top one."""
    groups = [line.split(":", 2) for line in own.splitlines()]
    for line in mounts.splitlines():
        _device, folder, kind, options = line.split()[:4]
        if kind == "cgroup" and "memory" in options.split(","):
            names = [path for _id, kinds, path in groups if "memory" in kinds.split(",")]
            version = 1
        elif kind == "cgroup2":
            names = [path for _id, kinds, path in groups if not kinds]
            version = 2
        else:
            continue
        for name in dict.fromkeys([*names, "/"]):
            yield Path(folder) / name.lstrip("/"), version


def _make(path: Path, version: int, limit: int) -> MemoryGroup:
    if version == 2:
        with contextlib.suppress(OSError):  # it may be on already; the limit below tells
            (path.parent / "cgroup.subtree_control").write_text("+memory")
    path.mkdir()
    name = "memory.limit_in_bytes" if version == 1 else "memory.max"
    (path / name).write_text(str(limit))
    if int((path / name).read_text()) > limit:
        raise OSError(0, "the kernel did not take the limit")
    swap = ("memory.swappiness", "0") if version == 1 else ("memory.swap.max", "0")
    with contextlib.suppress(OSError):  # not there without swap
        (path / swap[0]).write_text(swap[1])
    return MemoryGroup(path, version)


def _remove_abandoned(parent: Path) -> None:
    """Remove groups of runs that were killed before they could; the kernel keeps those in use."""
    for path in parent.glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX)
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            with contextlib.suppress(OSError):
                path.rmdir()


def _remove(path: Path) -> None:
    deadline = time.monotonic() + _REMOVE_SECONDS
    while path.is_dir():
        with contextlib.suppress(OSError):
            (path / "memory.force_empty").write_text("0")
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
