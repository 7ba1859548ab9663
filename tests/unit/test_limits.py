"""A memory limit: the way that works here is found before anything is started, or none is."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from swapmoe import cgroup, limits
from swapmoe.cgroup import MemoryGroup
from swapmoe.errors import LaunchError, ToolError

SIZE = 1 << 30


@pytest.fixture(autouse=True)
def _linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.sys, "platform", "linux")


def systemd(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A systemd-run that does what the script says."""
    program = folder / "systemd-run"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def refuse(_size: int) -> Iterator[MemoryGroup]:
        raise ToolError("no", evidence=["/sys/fs/cgroup/x: Permission denied"])
        yield

    monkeypatch.setattr(cgroup, "memory_limit", refuse)


def test_a_scope_that_the_kernel_confirms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd(tmp_path, monkeypatch, f'echo max; echo {SIZE}; echo "$@" > {tmp_path}/said')
    found = limits.choose(SIZE + 100)
    assert found.size == SIZE
    assert f"-p MemoryMax={SIZE} -p MemorySwapMax=0" in (tmp_path / "said").read_text()
    with found.applied(["a", "b"]) as (argv, group):
        assert argv[0] == "systemd-run"
        assert argv[-3:] == ["--", "a", "b"]
        assert group is None


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo max", "the scope has no memory limit"),
        ("echo 'Failed to connect to bus' >&2; exit 1", "Failed to connect to bus"),
    ],
)
def test_without_a_scope_a_group_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    systemd(tmp_path, monkeypatch, script)
    no_group(monkeypatch)
    with pytest.raises(LaunchError, match="limited to 1,024 MiB here; nothing") as caught:
        limits.choose(SIZE)
    assert said in caught.value.evidence[0]
    assert "Permission denied" in caught.value.evidence[1]
    sizes: list[int] = []

    @contextlib.contextmanager
    def allow(size: int) -> Iterator[MemoryGroup]:
        sizes.append(size)
        yield MemoryGroup(tmp_path, 2)

    monkeypatch.setattr(cgroup, "memory_limit", allow)
    found = limits.choose(SIZE)
    with found.applied(["a"]) as (argv, group):
        assert argv[-1] == "a"
        assert group is not None
    assert sizes == [SIZE, SIZE]


def test_other_systems_say_that_they_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.sys, "platform", "darwin")
    with pytest.raises(LaunchError) as caught:
        limits.choose(SIZE)
    assert "on Linux only" in caught.value.evidence[0]


def test_groups_of_runs_that_were_killed_are_removed(tmp_path: Path) -> None:
    mounts, own = tmp_path / "mounts", tmp_path / "own"
    mounts.write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    own.write_text("0::/mine\n")
    for name in ("swapmoe-99999999", "swapmoe-1", "swapmoe-other"):
        (tmp_path / "mine" / name).mkdir(parents=True)
    with contextlib.suppress(OSError), cgroup.memory_limit(SIZE, mounts, own):
        pass
    left = {path.name for path in (tmp_path / "mine").iterdir()}
    assert "swapmoe-99999999" not in left
    assert {"swapmoe-1", "swapmoe-other"} <= left
