"""The memory limit: which group is used, what is set, and that nothing is left behind."""

import os
import shutil
from pathlib import Path

import pytest

from swapmoe.cgroup import MemoryGroup, memory_limit
from swapmoe.errors import ToolError

V1 = "cgroup {root} cgroup rw,relatime,memory 0 0\n"
V2 = "cgroup2 {root} cgroup2 rw,relatime 0 0\n"


class FakeKernel:
    """A folder that stands for a cgroup file system."""

    def __init__(self, folder: Path, mount: str, own: str) -> None:
        self.root = folder / "fs"
        (self.root / "mine").mkdir(parents=True)
        self.mounts, self.own = folder / "mounts", folder / "own"
        self.mounts.write_text("proc /proc proc rw 0 0\n" + mount.format(root=self.root))
        self.own.write_text(own)


@pytest.fixture(autouse=True)
def _rmdir_takes_files_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does in a cgroup file system."""
    monkeypatch.setattr(Path, "rmdir", lambda path: shutil.rmtree(path))


@pytest.mark.parametrize(
    ("mount", "own", "limit_file"),
    [
        (V1, "5:memory:/mine\n0::/\n", "memory.limit_in_bytes"),
        (V2, "0::/mine\n", "memory.max"),
    ],
)
def test_limit_is_set_in_a_group_under_our_own(
    tmp_path: Path, mount: str, own: str, limit_file: str
) -> None:
    kernel = FakeKernel(tmp_path, mount, own)
    with memory_limit(1 << 20, kernel.mounts, kernel.own) as group:
        assert group.path == kernel.root / "mine" / f"swapmoe-{os.getpid()}"
        assert (group.path / limit_file).read_text() == str(1 << 20)
    assert not group.path.exists()


def test_v1_memory_is_found_beside_a_v2_mount_without_it(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, V1 + V2.format(root="/nowhere"), "5:cpu,memory:/mine\n0::/\n")
    with memory_limit(1 << 20, kernel.mounts, kernel.own) as group:
        assert group.version == 1


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_group_is_removed_whatever_happens(tmp_path: Path, failure: type[BaseException]) -> None:
    kernel = FakeKernel(tmp_path, V1, "5:memory:/mine\n")
    with pytest.raises(failure), memory_limit(1, kernel.mounts, kernel.own):
        raise failure
    assert list((kernel.root / "mine").iterdir()) == []


def test_no_memory_controller_is_an_error(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, "", "")
    limit = memory_limit(1, kernel.mounts, kernel.own)
    with pytest.raises(ToolError, match="cannot limit memory"), limit:
        pytest.fail("there is no limit")


def test_limit_that_the_kernel_rounds_up_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = FakeKernel(tmp_path, V2, "0::/mine\n")
    real = Path.read_text

    def rounded(path: Path) -> str:
        return "9223372036854771712" if path.name == "memory.max" else real(path)

    monkeypatch.setattr(Path, "read_text", rounded)
    with pytest.raises(ToolError) as caught, memory_limit(1 << 20, kernel.mounts, kernel.own):
        pytest.fail("there is no limit")
    assert "did not take the limit" in "\n".join(caught.value.evidence)


@pytest.mark.parametrize(
    ("version", "files", "peak", "kills"),
    [
        (
            1,
            {"memory.max_usage_in_bytes": "77\n", "memory.oom_control": "x 0\noom_kill 2\n"},
            77,
            2,
        ),
        (2, {"memory.peak": "88\n", "memory.events": "oom 3\noom_kill 1\n"}, 88, 1),
        (2, {"memory.events": "oom 0\noom_kill 0\n"}, None, 0),
    ],
)
def test_counters(
    tmp_path: Path, version: int, files: dict[str, str], peak: int | None, kills: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    group = MemoryGroup(tmp_path, version)
    assert (group.peak(), group.oom_kills()) == (peak, kills)
