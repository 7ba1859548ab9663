"""How much memory a program started here can use: what the system has left, and its cgroups allow.

The engine sizes its own cache by the same rule when it is not told a size.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_V2_HELD = {"anon", "shmem", "slab_unreclaimable", "kernel_stack", "pagetables", "sock"}
_V1_HELD = {"total_rss", "total_shmem"}
_UNLIMITED = 1 << 60
"""Version 1 says "no limit" with a huge number."""


@dataclass(frozen=True)
class Memory:
    """Usable bytes, the whole machine's bytes, and what bounds the former."""

    usable: int
    total: int
    source: str


def usable(
    root: Path = Path("/"), available: int | None = None, total: int | None = None
) -> Memory:
    """What a program started here can use. `root` is where proc and sys are looked for.

    That is the least of the memory the system has available and, for the process's cgroup and those
    above it, the limit less what cannot be given back: the page cache can, and a mapped model is
    nothing else.
    """
    if available is None or total is None:
        system = psutil.virtual_memory()
        available, total = int(system.available), int(system.total)
    best = Memory(available, total, "available memory of the system")
    for group in _groups(root):
        left = _left(group)
        if left is not None and left < best.usable:
            best = Memory(left, total, f"memory limit of {_name(group, root)}")
    return best


def _name(group: Path, root: Path) -> str:
    return f"/{group.relative_to(root)}"


def _groups(root: Path) -> Iterator[Path]:
    """The process's memory cgroups and those above them, as far as they can be seen."""
    try:
        mounts = (root / "proc/mounts").read_text().splitlines()
        own = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in mounts:
        fields = line.split()
        if len(fields) < 4 or fields[2] not in ("cgroup", "cgroup2"):
            continue
        if fields[2] == "cgroup" and "memory" not in fields[3].split(","):
            continue
        mount = root / fields[1].lstrip("/")
        for name in _own_paths(own, version=1 if fields[2] == "cgroup" else 2):
            group = mount / name.lstrip("/")
            while group != mount and mount in group.parents:
                yield group
                group = group.parent
        yield mount


def _own_paths(lines: Iterable[str], version: int) -> Iterator[str]:
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) == 3 and ".." not in parts[2].split("/"):
            kinds = parts[1].split(",")
            if (version == 2 and parts[1] == "") or (version == 1 and "memory" in kinds):
                yield parts[2]


def _left(group: Path) -> int | None:
    """Bytes that programs in a cgroup can still use; None without a limit."""
    for name, keys in (("memory.max", _V2_HELD), ("memory.limit_in_bytes", _V1_HELD)):
        limit = _number(group / name)
        if limit is not None and limit < _UNLIMITED:
            held = _held(group, keys) + (_number(group / "memory.kmem.usage_in_bytes") or 0)
            return max(0, limit - held)
    return None


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def _held(group: Path, keys: set[str]) -> int:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    pairs = (line.split() for line in lines)
    return sum(
        int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in keys and pair[1].isdigit()
    )
