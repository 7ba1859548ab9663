"""Measuring programs, with programs that use little."""

import os
import sys
from pathlib import Path

import pytest

from swapmoe.errors import ToolError
from swapmoe.usage import Usage, measure

WORK = """
import sys, time
print("begin", file=sys.stderr, flush=True)
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
print("middle", file=sys.stderr, flush=True)
print("result")
time.sleep(1)
sys.exit(3)
"""


def script(folder: Path, text: str) -> list[str]:
    path = folder / "program.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def test_counts_what_is_used_up_to_each_mark(tmp_path: Path) -> None:
    found = measure(
        script(tmp_path, WORK), env=os.environ, timeout=60, is_mark=lambda line: "middle" in line
    )
    assert found.completed.returncode == 3
    assert found.completed.stdout == "result\n"
    assert found.completed.stderr == "begin\nmiddle\n"
    assert not found.timed_out
    ((line, used),) = found.marks
    assert line == "middle"
    assert 0.25 <= used.user + used.system <= found.usage.user + found.usage.system + 0.05
    after = found.usage.since(used)
    assert after.wall >= 0.1
    assert after.user < found.usage.user


def test_kills_what_takes_too_long(tmp_path: Path) -> None:
    found = measure(
        script(tmp_path, "import time\nprint(1, flush=True)\ntime.sleep(60)\n"),
        env=os.environ,
        timeout=1,
    )
    assert found.timed_out
    assert found.completed.returncode == -9
    assert found.usage.wall < 30


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="program not found"):
        measure([tmp_path / "none"], env=os.environ, timeout=1)


def test_since_is_the_difference() -> None:
    assert Usage(5, 4, 3, 2).since(Usage(1, 1, 1, 1)) == Usage(4, 3, 2, 1)
