"""Which filesystem and which kind of device a file lies on, and what that means for streaming."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

MOUNTS = Path("/proc/self/mountinfo")
SYS = Path("/sys")

_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "smb", "afpfs", "webdav", "ceph", "glusterfs"),
    *("lustre", "afs", "ncpfs", "davfs"),
}
_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_HOST = {"9p", "drvfs", "virtiofs", "vboxsf", "vmhgfs", "prl_fs"}
_PACKED = {"squashfs", "erofs", "cramfs"}
_DEEPEST = 8
_VIRTUAL_NAME = re.compile(r"(vd|xvd)[a-z]")
_VIRTUAL_MAKER = re.compile(r"QEMU|VBOX|VMware|Virtual|Msft|Google|Amazon", re.IGNORECASE)
"""Disks of virtual machines, which say that they rotate whatever they are made of."""


@dataclass(frozen=True)
class Place:
    """Where a file lies. `medium` is ssd, hdd, usb, virtual, ram, network or unknown.

    `device` is the disk's name, "" where there is none or it cannot be told.
    """

    mount: str
    kind: str
    source: str
    options: tuple[str, ...]
    device: str
    medium: str

    @property
    def compressed(self) -> bool:
        """Whether files here may be stored compressed."""
        asked = any(
            re.fullmatch(r"compress(-force)?(=.*)?", option)
            and not option.endswith(("=no", "=off"))
            for option in self.options
        )
        return self.kind in ("zfs", *_PACKED) or (self.kind in ("btrfs", "f2fs") and asked)


def place_of(path: Path, mounts: Path = MOUNTS, system: Path = SYS) -> Place:
    """Where a file lies, as far as the system tells."""
    real = path.resolve()
    if sys.platform != "linux":
        return _from_psutil(real)
    best: Place | None = None
    number = ""
    for found, device in _mounts(mounts):
        # A later mount on the same folder hides the earlier one.
        if real.is_relative_to(found.mount) and (
            best is None or len(found.mount) >= len(best.mount)
        ):
            best, number = found, device
    if best is None:
        return Place("", "unknown", "", (), "", "unknown")
    name, medium = _medium(best, number, system)
    return Place(best.mount, best.kind, best.source, best.options, name, medium)


def places(shards: Sequence[Path]) -> dict[Place, list[Path]]:
    """The places of a model's files, with the files at each."""
    found: dict[Place, list[Path]] = {}
    for shard in shards:
        found.setdefault(place_of(shard), []).append(shard)
    return found


def _mounts(file: Path) -> Iterator[tuple[Place, str]]:
    """Every mount of a mountinfo file (proc_pid_mountinfo(5)) with its device number."""
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if len(before) < 6 or len(after) < 3:
            continue
        options = (*before[5].split(","), *after[2].split(","))
        yield (
            Place(_plain(before[4]), after[0], _plain(after[1]), options, "", "unknown"),
            before[2],
        )


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _medium(place: Place, number: str, system: Path) -> tuple[str, str]:
    if place.kind in _MEMORY:
        return "", "ram"
    if place.kind in _NETWORK:
        return "", "network"
    block = system / "dev/block" / number
    if not block.exists() and place.source.startswith("/dev/"):  # btrfs has no device of its own
        block = system / "class/block" / Path(os.path.realpath(place.source)).name
    if not block.exists():
        return "", "unknown"
    disks = list(_disks(block.resolve(), _DEEPEST))
    kinds = {_kind_of_disk(disk) for disk in disks}
    worst = next((kind for kind in ("usb", "hdd", "virtual", "ssd") if kind in kinds), "unknown")
    return ", ".join(disk.name for disk in disks), worst


def _disks(block: Path, depth: int) -> Iterator[Path]:
    """The disks below a partition, a RAID, an LVM volume or an encrypted device."""
    if (block / "partition").exists():
        block = block.parent
    below = sorted((block / "slaves").iterdir()) if (block / "slaves").is_dir() else []
    if not below or depth == 0:
        yield block
        return
    for link in below:
        yield from _disks(link.resolve(), depth - 1)


def _kind_of_disk(disk: Path) -> str:
    def flag(name: str) -> str:
        try:
            return (disk / name).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""

    if flag("removable") == "1" or any(re.fullmatch(r"usb\d+", part) for part in disk.parts):
        return "usb"
    if flag("queue/rotational") != "1":
        return "ssd" if flag("queue/rotational") == "0" else "unknown"
    maker = f"{flag('device/vendor')} {flag('device/model')}"
    is_virtual = _VIRTUAL_NAME.match(disk.name) or _VIRTUAL_MAKER.search(maker)
    return "virtual" if is_virtual else "hdd"


def _from_psutil(path: Path) -> Place:
    parts = psutil.disk_partitions(all=True)
    around = [part for part in parts if path.is_relative_to(part.mountpoint)]
    if not around:
        return Place("", "unknown", "", (), "", "unknown")
    found = max(around, key=lambda part: len(part.mountpoint))
    options = tuple(found.opts.split(","))
    kind = found.fstype.lower()
    medium = "unknown"
    if "remote" in options or kind in _NETWORK:
        medium = "network"
    elif "removable" in options:
        medium = "usb"
    return Place(found.mountpoint, kind, found.device, options, found.device, medium)


def warnings(place: Place) -> Sequence[str]:
    """What about a place makes streaming slow or pointless; nothing here forbids it."""
    found = []
    if place.kind in _HOST:
        found.append(
            f"{place.kind} goes through the host for every read: 10 to 100 times slower than a "
            "disk of this system; copy the model to one (under WSL: into the Linux filesystem)"
        )
    elif place.medium == "network":
        found.append(
            f"{place.kind} is a network filesystem: each slice is a round trip, and an interrupted "
            "mount looks like a damaged model; copy the model to a local disk"
        )
    elif place.kind.startswith("fuse"):
        found.append(
            f"{place.kind} runs in a program of its own: reads cost CPU time and may not go past "
            "the page cache; copy the model to a disk with a filesystem of the kernel"
        )
    elif place.medium == "ram":
        found.append(
            f"{place.kind} is memory: the whole model is in RAM already and streaming copies it "
            "there a second time; put the file on a disk"
        )
    if place.medium == "usb":
        found.append(
            f"the disk {place.device} is removable or on USB: often slow at random places, and "
            "pulling it ends every request with an error"
        )
    elif place.medium == "hdd":
        found.append(
            f"the disk {place.device} rotates: slices at random places come at the speed of its "
            "head; put the model on a solid state disk"
        )
    if place.compressed:
        found.append(
            f"{place.kind} may hold the file compressed: every read is unpacked into a copy and "
            "cannot go past the page cache; store the model uncompressed"
        )
    if place.kind == "overlay":
        found.append(
            "overlay is a container's layer: mount the folder of the model into the container "
            "instead, so that reads reach its filesystem directly"
        )
    return found


def to_json(place: Place) -> dict[str, object]:
    """A place and its warnings, for machines."""
    return {
        "mount": place.mount,
        "filesystem": place.kind,
        "device": place.device,
        "medium": place.medium,
        "warnings": list(warnings(place)),
    }
