"""Usable memory, from files as systems and containers have them."""

from pathlib import Path

import pytest

from swapmoe import memory
from swapmoe.memory import Memory
from swapmoe.sizes import GIB

V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
V1 = "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def usable(root: Path, available: int = 28 * GIB) -> Memory:
    return memory.usable(root, available=available, total=32 * GIB)


def v2(root: Path, group: str, limit: str, **stat: int) -> None:
    lines = "".join(f"{key} {value}\n" for key, value in stat.items())
    folder = f"sys/fs/cgroup{group}"
    write(root, {f"{folder}/memory.max": f"{limit}\n", f"{folder}/memory.stat": lines})
    write(root, {"proc/mounts": V2, "proc/self/cgroup": f"0::{group}\n"})


def test_a14_no_limit_in_the_container(tmp_path: Path) -> None:
    v2(tmp_path, "/job", "max", anon=GIB, file=25 * GIB)
    assert usable(tmp_path) == Memory(28 * GIB, 32 * GIB, "available memory of the system")


def test_a14_the_page_cache_of_a_container_is_usable(tmp_path: Path) -> None:
    v2(tmp_path, "/job", str(8 * GIB), anon=GIB // 2, file=7 * GIB)
    found = usable(tmp_path)
    assert found.usable == 7.5 * GIB
    assert found.source == "memory limit of /sys/fs/cgroup/job"


def test_kernel_memory_and_shared_memory_are_not(tmp_path: Path) -> None:
    v2(tmp_path, "/job", str(8 * GIB), anon=GIB, shmem=GIB, slab_unreclaimable=GIB // 2, file=GIB)
    assert usable(tmp_path).usable == 5.5 * GIB


def test_limits_of_groups_above_count(tmp_path: Path) -> None:
    v2(tmp_path, "/a/b", str(8 * GIB), anon=0)
    write(tmp_path, {"sys/fs/cgroup/a/memory.max": str(4 * GIB)})
    assert usable(tmp_path).source == "memory limit of /sys/fs/cgroup/a"


def test_less_is_available_than_the_limit_allows(tmp_path: Path) -> None:
    v2(tmp_path, "/job", str(8 * GIB), anon=0)
    assert usable(tmp_path, available=2 * GIB).source == "available memory of the system"


def test_version_1(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/job"
    files = {
        "proc/mounts": V1,
        "proc/self/cgroup": "7:cpu:/x\n4:memory:/job\n",
        f"{folder}/memory.limit_in_bytes": f"{6 * GIB}\n",
        f"{folder}/memory.stat": f"cache {5 * GIB}\nrss 1\ntotal_rss {GIB}\n",
        f"{folder}/memory.kmem.usage_in_bytes": f"{GIB // 4}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    write(tmp_path, files)
    assert usable(tmp_path).usable == 4.75 * GIB


def test_a_container_that_does_not_see_its_own_group(tmp_path: Path) -> None:
    files = {
        "proc/mounts": V1,
        "proc/self/cgroup": "4:memory:/docker/0123\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"total_rss {GIB}\n",
    }
    write(tmp_path, files)
    assert usable(tmp_path).usable == 2 * GIB


@pytest.mark.parametrize("text", ["", "-1", "much", "\u0663"])
def test_odd_files_are_no_limit(tmp_path: Path, text: str) -> None:
    v2(tmp_path, "/job", text, anon=0)
    write(tmp_path, {"sys/fs/cgroup/job/memory.stat": "anon\nanon x\n\n"})
    assert usable(tmp_path).usable == 28 * GIB


def test_a_system_without_cgroups(tmp_path: Path) -> None:
    assert usable(tmp_path).usable == 28 * GIB
    assert 0 < memory.usable().usable <= memory.usable().total
