"""scripts/bench_modes.py with programs that only print figures, on a real cgroup and device."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swapmoe import blockdev
from tests.support.models import make_tiny

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_modes.py"
COMPLETION = """#!/bin/sh
case "$* " in *"--expert-io mmap "*) ms=100 ;; *) ms=200 ;; esac
echo "I common_perf_print: prompt eval time =     150.00 ms /    12 tokens (x)" >&2
echo "I common_perf_print:        eval time =     $ms.00 ms /    10 runs   (x)" >&2
echo "I expert_stream: statistics: passes=1 routed=2" >&2
"""
BENCH = """#!/bin/sh
echo '[{"n_gen": 0, "avg_ts": 100.0}, {"n_gen": 48, "avg_ts": 10.0}]'
"""


def programs(folder: Path, completion: str = COMPLETION) -> Path:
    """Write the fake programs of one build."""
    folder.mkdir()
    for name, text in (("llama-completion", completion), ("llama-bench", BENCH)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def command(tmp_path: Path, *argv: str, patched: str = COMPLETION) -> list[str]:
    """Return the command line for a small model, percent so that a shell fits into the limit."""
    model = make_tiny(tmp_path, experts=64, layers=8)
    base, own = programs(tmp_path / "base"), programs(tmp_path / "patched", patched)
    fixed = ["-m", str(model), "--base", str(base), "--patched", str(own), "--percent", "1000"]
    return [sys.executable, str(SCRIPT), *fixed, *argv]


def leftovers() -> list[Path]:
    """Return memory groups that should be gone."""
    return list(Path("/sys/fs/cgroup").glob("**/swapmoe-*"))


@pytest.mark.usefixtures("can_measure")
def test_compares_modes_and_leaves_nothing(tmp_path: Path) -> None:
    page, data = tmp_path / "page.md", tmp_path / "runs.json"
    variant = "random=mmap:SOME_SWITCH=1"
    argv = command(tmp_path, "--repeats", "2", "--markdown", str(page), "--json", str(data))
    before = blockdev.device_of(tmp_path).read_ahead.read_text()
    done = subprocess.run([*argv, "--variant", variant], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "decode: mmap / fault: 2.000 (2.000 to 2.000 in 2 rounds)" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "| mmap | 100.00 | 0.15 |" in page.read_text()
    runs = json.loads(data.read_text())["runs"]
    names = ["unpatched", "unpatched-no-repack", "fault", "mmap", "direct", "random"]
    assert [run["mode"] for run in runs] == [*names, *reversed(names)]
    assert runs[0]["engine"] == "passes=1 routed=2"
    assert all(run["peak"] for run in runs)
    assert blockdev.device_of(tmp_path).read_ahead.read_text() == before
    assert leftovers() == []


@pytest.mark.usefixtures("can_measure")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    started = tmp_path / "started"
    argv = command(tmp_path, "--mode", "mmap", patched=f"#!/bin/sh\n: >{started}\nsleep 100\n")
    device = blockdev.device_of(tmp_path)
    before = device.read_ahead.read_text()
    child = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not started.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(child.pid, number)
    _out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "interrupted" in err
    assert device.read_ahead.read_text() == before
    assert leftovers() == []


@pytest.mark.usefixtures("can_measure")
def test_a_failing_patched_build_is_an_error(tmp_path: Path) -> None:
    argv = command(tmp_path, "--repeats", "1", patched="#!/bin/sh\necho broken >&2\nexit 3\n")
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 10
    assert "broken" in done.stderr
    assert "failed (3) 1/1" in done.stdout


@pytest.mark.usefixtures("can_measure")
def test_being_killed_for_memory_is_a_result(tmp_path: Path) -> None:
    hog = f"#!/bin/sh\nexec {sys.executable} -c 'x = b\"1\" * (400 << 20)'\n"
    argv = command(tmp_path, "--repeats", "1", "--mode", "fault", patched=hog)
    done = subprocess.run(argv, capture_output=True, text=True)
    assert "killed (OOM) 1/1" in done.stdout
    assert leftovers() == []


def test_resident_uses_llama_bench(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path, "--resident"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "decode: streaming off / unpatched: 1.000" in done.stdout
    assert "prompt: streaming off / unpatched: 1.000" in done.stdout


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--variant", "nonsense"], 2, "NAME=MODE:KEY=VALUE"),
        (["--variant", "a=nowhere:B=1"], 2, "NAME=MODE:KEY=VALUE"),
        (["-m", "/none.gguf"], 9, "/none.gguf"),
    ],
)
def test_bad_input(tmp_path: Path, argv: list[str], code: int, said: str) -> None:
    done = subprocess.run(command(tmp_path, *argv), capture_output=True, text=True)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
