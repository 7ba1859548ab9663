"""Filesystem and device of a file, from mount tables and device trees as systems write them."""

import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from swapmoe import filesystems
from swapmoe.filesystems import Place, place_of, warnings


class System:
    """A mount table and a /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mounts = root / "mountinfo"
        self.sys = root / "sys"
        self.lines: list[str] = []
        (self.sys / "dev/block").mkdir(parents=True)
        (self.sys / "class/block").mkdir(parents=True)

    def mount(
        self, where: str, kind: str, number: str = "0:9", source: str = "x", options: str = "rw"
    ) -> None:
        at = str(self.root / where).replace(" ", "\\040") if where != "/" else "/"
        self.lines.append(f"1 0 {number} / {at} rw,relatime shared:1 - {kind} {source} {options}")
        self.mounts.write_text("\n".join(self.lines) + "\n")

    def disk(
        self, name: str, number: str = "", *, rotational: str = "0", bus: str = "pci0", **flags: str
    ) -> Path:
        folder = self.sys / "devices" / bus / name
        (folder / "queue").mkdir(parents=True)
        (folder / "queue/rotational").write_text(f"{rotational}\n")
        for flag, value in flags.items():
            (folder / flag).write_text(value)
        self.link(folder, number)
        return folder

    def link(self, folder: Path, number: str) -> None:
        if number:
            (self.sys / "dev/block" / number).symlink_to(folder)
        (self.sys / "class/block" / folder.name).symlink_to(folder)

    def place(self, where: str) -> Place:
        return place_of(self.root / where, self.mounts, self.sys)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    monkeypatch.setattr(filesystems.sys, "platform", "linux")
    return System(tmp_path)


def test_the_innermost_and_last_mount_counts(system: System) -> None:
    system.mount("/", "ext4", "8:1")
    system.mount("a b", "xfs", "8:2")
    system.mount("a b", "ext4", "8:3")
    system.disk("sda3", "8:3")
    found = system.place("a b/c/m.gguf")
    assert (found.kind, found.mount) == ("ext4", str(system.root / "a b"))
    assert (found.device, found.medium) == ("sda3", "ssd")
    assert warnings(found) == []
    assert system.place("a bc/m.gguf").mount == "/"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("9p", "10 to 100 times slower"),
        ("drvfs", "WSL"),
        ("nfs4", "network filesystem"),
        ("cifs", "network filesystem"),
        ("fuse.sshfs", "program of its own"),
        ("fuseblk", "program of its own"),
        ("tmpfs", "in RAM already"),
        ("zfs", "compressed"),
        ("squashfs", "compressed"),
        ("overlay", "container"),
    ],
)
def test_a13_slow_or_odd_filesystems_are_warned_about(system: System, kind: str, said: str) -> None:
    system.mount("m", kind)
    (warning,) = warnings(system.place("m/x"))
    assert said in warning


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ("rw,compress=zstd:3,subvol=/@", True),
        ("rw,compress-force=lzo", True),
        ("rw,compress", True),
        ("rw,compress=no", False),
        ("rw,space_cache=v2", False),
    ],
)
def test_btrfs_is_found_by_its_source(system: System, options: str, warned: bool) -> None:
    system.mount("m", "btrfs", "0:41", "/dev/nvme0n1", options)
    system.disk("nvme0n1", "259:0")
    found = system.place("m/x")
    assert (found.device, found.medium) == ("nvme0n1", "ssd")
    assert bool(warnings(found)) == warned


def test_rotating_removable_and_usb_disks(system: System) -> None:
    system.mount("hdd", "ext4", "8:0")
    system.disk("sda", "8:0", rotational="1")
    system.mount("card", "ext4", "179:0")
    system.disk("mmcblk0", "179:0", removable="1")
    system.mount("stick", "exfat", "8:16")
    system.disk("sdb", "8:16", bus="pci0/usb2/2-1")
    assert "sda rotates" in warnings(system.place("hdd/x"))[0]
    assert "sdb is removable or on USB" in warnings(system.place("stick/x"))[0]
    assert system.place("card/x").medium == "usb"


@pytest.mark.parametrize(("name", "model"), [("vda", ""), ("xvdb", ""), ("sdc", "Virtual Disk")])
def test_a_virtual_disk_that_says_it_rotates_is_not_believed(
    system: System, name: str, model: str
) -> None:
    system.mount("m", "ext4", "8:5")
    disk = system.disk(name, "8:5", rotational="1")
    (disk / "device").mkdir()
    (disk / "device/model").write_text(model)
    found = system.place("m/x")
    assert found.medium == "virtual"
    assert warnings(found) == []


def test_partitions_and_stacked_devices_lead_to_their_disks(system: System) -> None:
    disk = system.disk("sda", rotational="1")
    (disk / "sda1").mkdir()
    (disk / "sda1/partition").write_text("1")
    other = system.disk("nvme0n1")
    volume = system.disk("dm-0", "253:0", bus="virtual")
    (volume / "slaves").mkdir()
    (volume / "slaves/sda1").symlink_to(disk / "sda1")
    (volume / "slaves/nvme0n1").symlink_to(other)
    system.mount("m", "ext4", "253:0")
    found = system.place("m/x")
    assert (found.device, found.medium) == ("nvme0n1, sda", "hdd")


def test_nothing_known_is_no_error(system: System) -> None:
    assert system.place("x") == Place("", "unknown", "", (), "", "unknown")
    system.mount("/", "ext4", "8:9")
    assert system.place("x").medium == "unknown"
    system.mounts.write_text("nonsense\n1 2 - \n")
    assert system.place("x").kind == "unknown"


@pytest.mark.parametrize(
    ("options", "medium"),
    [("rw,fixed", "unknown"), ("rw,removable", "usb"), ("rw,remote", "network")],
)
def test_other_systems_tell_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, medium: str
) -> None:
    monkeypatch.setattr(filesystems.sys, "platform", "win32")
    part = SimpleNamespace(device="D:", mountpoint=str(tmp_path), fstype="NTFS", opts=options)
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [part])
    found = place_of(tmp_path / "m.gguf")
    assert (found.kind, found.medium) == ("ntfs", medium)


def test_this_machine(tmp_path: Path) -> None:
    found = place_of(tmp_path)
    assert found.kind
    assert sys.platform != "linux" or found.kind != "unknown"
