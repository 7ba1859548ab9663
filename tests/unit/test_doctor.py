"""`swapmoe doctor`: what it says, what it ends with, and that warnings refuse nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from swapmoe import (
    blockdev,
    diskprobe,
    doctor_machine,
    doctor_model,
    doctor_tools,
    filesystems,
    findings,
    gguf_info,
    history,
    limits,
    receipts,
)
from swapmoe.blockdev import Device
from swapmoe.cli import main
from swapmoe.diskprobe import Probe
from swapmoe.errors import LaunchError, ToolError
from swapmoe.filesystems import Place
from swapmoe.findings import Finding
from swapmoe.limits import Limit
from swapmoe.receipts import Receipt
from tests.support.building import Workshop
from tests.support.headers import MOE, ROWS, Row, gguf, write

NVME = Place("/", "ext4", "/dev/nvme0n1p2", ("rw",), "nvme0n1", "ssd")


@pytest.fixture(autouse=True)
def _a_sound_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(filesystems, "place_of", lambda _path: NVME)
    monkeypatch.setattr(limits, "choose", lambda size: Limit(size, ()))
    setting = tmp_path / "read_ahead_kb"
    setting.write_text("128\n")
    monkeypatch.setattr(blockdev, "device_of", lambda _path: Device("nvme0n1", setting))


def rows(found: list[Finding], name: str) -> list[Finding]:
    return [row for row in found if row.name == name]


def install(shop: Workshop, name: str, script: str) -> None:
    program = shop.tools.folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


class TestCommand:
    @pytest.fixture(autouse=True)
    def _git(self, shop: Workshop) -> None:
        install(shop, "git", "echo git version 2.39.5")

    def test_a_sound_model(
        self, shop: Workshop, built: Receipt, model: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["doctor", str(model)]) == 0
        out = capsys.readouterr().out
        assert "24 routed slices" in out
        assert "ext4 on nvme0n1 (ssd), mounted at /" in out
        assert "lacks" not in out
        assert "bad" not in out
        assert "reads at once" in out

    def test_json_is_alone_on_stdout(
        self, shop: Workshop, built: Receipt, model: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["doctor", str(model), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert set(data["findings"]) == {"tools", "machine", "build", "model"}
        depths = [(read["depth"], read["bandwidth"] > 0) for read in data["disk"]["reads"]]
        assert depths == [(1, True), (8, True), (32, True)] * 2
        assert data["disk"]["slice_bytes"] == 1152

    def test_without_a_model_or_a_probe(
        self, shop: Workshop, model: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["doctor", "--json"]) == 0
        assert "model" not in json.loads(capsys.readouterr().out)["findings"]
        assert main(["doctor", "--no-probe", "--json", str(model)]) == 0
        assert json.loads(capsys.readouterr().out)["disk"] is None

    @pytest.mark.parametrize(
        ("name", "data", "said"),
        [
            ("page.gguf", b"<!DOCTYPE html>", "is a web page"),
            ("cut.gguf", gguf(MOE, ROWS)[:-1024], "is cut off"),
            ("dense.gguf", gguf(MOE, ROWS[:1]), "no routed experts"),
            (
                "old.gguf",
                gguf(MOE, [Row("blk.0.ffn_gate.0.weight", (64, 32))]),
                "pre-2024 expert layout",
            ),
        ],
    )
    def test_a_model_that_cannot_be_used(
        self,
        shop: Workshop,
        capsys: pytest.CaptureFixture[str],
        name: str,
        data: bytes,
        said: str,
    ) -> None:
        assert main(["doctor", "--no-probe", str(write(shop.root / name, data))]) == 9
        assert said in " ".join(capsys.readouterr().out.split())
        assert main(["doctor", str(shop.root / "none.gguf")]) == 9

    def test_a_missing_tool(self, shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
        shop.only_tools()
        shop.tools.remove("ninja")
        install(shop, "apt-get", "exit 1")
        assert main(["doctor"]) == 4
        out = capsys.readouterr().out
        assert "lacks ninja" in out
        assert "> sudo apt-get install ninja-build" in out

    def test_lines_fit_80_columns(
        self, shop: Workshop, built: Receipt, capsys: pytest.CaptureFixture[str]
    ) -> None:
        model = write(Path("m.gguf"), gguf(MOE, ROWS))
        assert main(["doctor", str(model)]) == 0
        long = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
        assert all(max(map(len, line.split())) > 58 for line in long)  # a path is not broken


class TestBuild:
    def test_nothing_yet(self, shop: Workshop) -> None:
        found = doctor_tools.builds(None)
        assert [row.name for row in found] == ["pin", "source", "build"]
        assert found[2].hint == "swapmoe build"

    def test_a_sound_build(self, shop: Workshop, built: Receipt) -> None:
        found = doctor_tools.builds(None)
        assert rows(found, "receipt")[0].status == "ok"
        assert "all 1 that" in rows(found, "cpu features")[0].text

    def test_another_cpu(self, shop: Workshop, built: Receipt) -> None:
        shop.cpu("sse2")
        (row,) = rows(doctor_tools.builds(None), "cpu features")
        assert row.status == "warn"
        assert "avx2" in row.text

    def test_altered_files_and_other_patches(self, shop: Workshop, built: Receipt) -> None:
        built.program("llama-server").write_bytes(b"x")
        assert "llama-server" in rows(doctor_tools.builds(None), "receipt")[0].text
        old = replace(built, inputs=built.inputs | {"tree id": "f" * 40})
        receipts.write(built.bin_dir.parent, old)
        assert "older than the patches" in rows(doctor_tools.builds(None), "receipt")[0].text


class TestMachine:
    def test_what_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path / "proc/cpuinfo", b"processor\t: 0\nmodel name\t: Fast One\n")
        write(tmp_path / "sys/kernel/mm/transparent_hugepage/enabled", b"always [madvise] never\n")
        write(tmp_path / "proc/meminfo", b"MemTotal: 1000 kB\nHugePages_Total: 0\n")
        found = doctor_machine.machine(tmp_path)
        assert "Fast One" in rows(found, "cpu")[0].text
        assert "transparent: madvise" in rows(found, "huge pages")[0].text
        assert "cgroup made for it" in rows(found, "memory limit")[0].text

    def test_reserved_huge_pages(self, tmp_path: Path) -> None:
        text = b"MemTotal: 1048576 kB\nHugePages_Total: 100\nHugepagesize: 2048 kB\n"
        write(tmp_path / "proc/meminfo", text)
        (row,) = rows(doctor_machine.machine(tmp_path), "huge pages")
        assert row.status == "warn"
        assert "200.0 MiB, which no ordinary program can use" in row.text

    def test_a_container(self, tmp_path: Path) -> None:
        write(tmp_path / "proc/mounts", b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        write(tmp_path / "proc/self/cgroup", b"0::/\n")
        write(tmp_path / "sys/fs/cgroup/memory.max", b"67108864\n")
        write(tmp_path / "sys/fs/cgroup/memory.stat", b"anon 1048576\nfile 60000000\n")
        (row,) = rows(doctor_machine.machine(tmp_path), "memory")
        assert row.text.startswith("63.0 MiB usable of ")
        assert "memory limit of /sys/fs/cgroup" in row.text

    @pytest.mark.parametrize(("used", "status"), [(1 << 30, "ok"), (3 << 30, "warn")])
    def test_swap(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: int, status: str
    ) -> None:
        swap = SimpleNamespace(total=4 << 30, used=used)
        monkeypatch.setattr(psutil, "swap_memory", lambda: swap)
        write(tmp_path / "proc/sys/vm/swappiness", b"60\n")
        (row,) = rows(doctor_machine.machine(tmp_path), "swap")
        assert row.status == status
        assert "swappiness 60" in row.text

    def test_no_memory_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_size: int) -> Limit:
            raise LaunchError("no", evidence=["systemd-run: not installed"])

        monkeypatch.setattr(limits, "choose", refuse)
        (row,) = rows(doctor_machine.machine(tmp_path), "memory limit")
        assert (row.status, "not installed" in row.text) == ("note", True)


class TestModel:
    def test_each_place_of_the_shards_is_named(
        self, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nfs = Place("/net", "nfs4", "server:/x", ("rw",), "", "network")
        places = iter([NVME, nfs, nfs])
        monkeypatch.setattr(filesystems, "place_of", lambda _path: next(places))
        found = list(doctor_model._places([model, model, model]))
        assert [row.text.split(":")[0] for row in rows(found, "filesystem")][:2] == [
            "1 of 3 files",
            "2 of 3 files",
        ]
        assert [row.status for row in found].count("warn") == 1

    def test_a_large_read_ahead_is_warned_about(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "read_ahead_kb").write_text("8192\n")
        found, _ = doctor_model.model(model)
        (row,) = rows(found, "read-ahead")
        assert row.status == "warn"
        assert "35 times slower" in row.text
        assert row.hint == f"echo 128 | sudo tee {tmp_path / 'read_ahead_kb'}"

    def test_a_filesystem_without_a_read_ahead(
        self, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_path: Path) -> Device:
            raise ToolError("none")

        monkeypatch.setattr(blockdev, "device_of", refuse)
        (row,) = rows(doctor_model.model(model)[0], "read-ahead")
        assert row.status == "note"


def measured(direct: bool = True, left: int | None = 0) -> doctor_model.Disk:
    probes = tuple(
        Probe(depth, 1000, 10, 10_000, 0.001, 0.0001, direct and first)
        for first in (True, False)
        for depth in doctor_model.DEPTHS
    )
    return doctor_model.Disk(1000, 1 << 20, left, probes)


class TestProbe:
    @pytest.fixture(autouse=True)
    def _facts(self, model: Path) -> None:
        self.facts = gguf_info.inspect(model)

    def text(self, disk: doctor_model.Disk) -> str:
        return "\n".join(row.text for row in doctor_model.disk_findings(disk, self.facts))

    def test_the_table(self) -> None:
        text = self.text(measured())
        assert f"\n{'8':<16}{'10 (0.10)':>16}{'10 (0.10)':>18}\n" in text
        assert "a token needs 13,824 bytes of experts" in text
        assert "page cache" not in text

    def test_direct_reads_that_are_refused(self) -> None:
        text = self.text(measured(direct=False))
        assert text.count("refused") == 3
        assert "a token needs" not in text

    @pytest.mark.parametrize(
        ("left", "said"),
        [
            (1 << 19, "524,288 bytes could not be dropped"),
            (None, "cannot drop a file from the page cache"),
        ],
    )
    def test_what_could_not_be_dropped_is_said(self, left: int | None, said: str) -> None:
        assert said in self.text(measured(left=left))

    @pytest.mark.parametrize("meaningful", [True, False])
    def test_the_file_is_dropped_first(
        self, monkeypatch: pytest.MonkeyPatch, model: Path, meaningful: bool
    ) -> None:
        size = model.stat().st_size
        monkeypatch.setattr(doctor_model, "MEANINGFUL_BYTES", size if meaningful else size + 1)
        model.read_bytes()
        seen: list[Callable[..., object]] = []
        real = diskprobe.probe

        def spy(*args: object, **more: object) -> Probe:
            seen.append(real)
            return real(*args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(diskprobe, "probe", spy)
        disk = doctor_model.measure(self.facts)
        assert len(seen) == 6
        assert disk.left is None or disk.left <= model.stat().st_size + 4096
        assert disk.slice_bytes == 1152
        assert model.stat().st_size == disk.total
        kept = [found.rate for found in history.disks(model)]
        direct = [probe.bandwidth for probe in disk.probes if probe.direct]
        assert kept == ([max(direct)] if direct and meaningful else [])


def test_rows_are_wrapped_under_their_text() -> None:
    row = Finding("warn", "name", "word " * 30, "do this")
    text = list(findings.lines({"Section": [row]}))
    assert text[0] == "Section"
    assert text[1].startswith("  warn  name          word")
    assert text[2].startswith(" " * 22 + "word")
    assert text[-2] == " " * 22 + "> do this"
    assert max(map(len, text)) <= 80
