"""The memory limit with a real kernel, where there is a cgroup to use."""

import os
import subprocess
from pathlib import Path

import pytest

from swapmoe.cgroup import MemoryGroup, memory_limit
from swapmoe.errors import ToolError


def test_real_limit_counts_the_page_cache_and_kills(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"x" * (8 << 20))
    data_fd = os.open(data, os.O_RDONLY)
    os.fsync(data_fd)
    os.posix_fadvise(data_fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(data_fd)
    try:
        with memory_limit(64 << 20) as group:
            subprocess.run(group.wrap(["cat", str(data)]), stdout=subprocess.DEVNULL, check=True)
            assert (group.peak() or 8 << 20) >= 8 << 20
            assert group.oom_kills() == 0
            hog = ["python3", "-c", "x = b'1' * (256 << 20)"]
            assert subprocess.run(group.wrap(hog), check=False).returncode != 0
            assert group.oom_kills() == 1
    except ToolError as error:
        pytest.skip(f"no cgroup to use here: {error.evidence}")
    assert not group.path.exists()


def test_arguments_reach_the_program_as_they_are(tmp_path: Path) -> None:
    group = MemoryGroup(tmp_path, 1)
    argv = ["printf", "%s|", "a b", "$HOME", "'", ""]
    done = subprocess.run(group.wrap(argv), capture_output=True, text=True, check=True)
    assert done.stdout == "a b|$HOME|'||"
    assert int((tmp_path / "cgroup.procs").read_text()) > 0
