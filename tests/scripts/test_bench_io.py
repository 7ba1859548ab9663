"""scripts/bench_io.py with a llama-bench that only prints figures, on a real cgroup and device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swapmoe import blockdev
from swapmoe.gguf_info import inspect
from tests.support.models import make_tiny

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_io.py"
ROW = "122b-a10b-q2_k"
# Three times as fast with direct; a run takes a moment, so that there is something to count.
PROGRAM = """#!/bin/sh
case "$* " in *"-n 0 "*) kind=prompt ;; *) kind=generation ;; esac
case "$* " in *"-eio direct "*) ns=100000000 ;; *) ns=300000000 ;; esac
repeats=$(echo "$*" | sed 's/.* -r \\([0-9]*\\) .*/\\1/')
samples=$ns
for run in $(seq "$repeats"); do
    echo "llama-bench: benchmark 1/1: $kind run $run/$repeats" >&2
    [ "$run" = 1 ] || samples="$samples, $ns"
done
sleep 0.1
echo "expert_stream: budget = 1 MiB in 4 slots, 3 reader threads, direct I/O" >&2
echo "llama_kv_cache:        CPU KV buffer size =     3.00 MiB" >&2
echo "expert_stream: statistics: passes=64 budget=1048576 stall_us=640000" >&2
echo "[{\\"samples_ns\\": [$samples]}]"
"""


def program(folder: Path, text: str = PROGRAM) -> Path:
    """Write the fake llama-bench of one build."""
    folder.mkdir()
    (folder / "llama-bench").write_text(text)
    (folder / "llama-bench").chmod(0o755)
    return folder


def command(tmp_path: Path, *argv: str, patched: str = PROGRAM, row: str = ROW) -> list[str]:
    """Return the command line for a small model, with a limit that a shell fits into."""
    model = make_tiny(tmp_path, experts=64, layers=8)
    base, own = program(tmp_path / "base"), program(tmp_path / "patched", patched)
    fixed = ["-m", str(model), "--row", row, "--ratio", "0.1"]
    builds = ["--base", str(base), "--patched", str(own)]
    return [sys.executable, str(SCRIPT), *fixed, *builds, *argv]


def run(argv: list[str], cache: Path) -> "subprocess.CompletedProcess[str]":
    """Run it, and see that its memory group is gone."""
    env = {**os.environ, "SWAPMOE_CACHE_DIR": str(cache)}
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=env) as child:
        out, err = child.communicate()
    assert list(Path("/sys/fs/cgroup").glob(f"**/swapmoe-{child.pid}")) == []
    return subprocess.CompletedProcess(argv, child.returncode, out, err)


@pytest.mark.usefixtures("can_measure")
def test_one_command_gives_table_and_data(tmp_path: Path) -> None:
    page, data = tmp_path / "page.md", tmp_path / "runs.json"
    name = f"bench-io-{ROW}"
    page.write_text(f"# Figures\n\n<!-- begin {name} -->\nold\n<!-- end {name} -->\n\nend\n")
    argv = command(tmp_path, "--rounds", "2", "--resident")
    before = blockdev.device_of(tmp_path).read_ahead.read_text()
    done = run([*argv, "--markdown", str(page), "--json", str(data)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "decode: direct / fault: 3.000 (3.000 to 3.000 in 2 rounds)" in done.stdout
    assert "decode: direct in " in done.stdout
    assert "decode, all in memory: direct / unpatched: 3.000" in done.stdout
    tables = [line for line in done.stdout.splitlines() if line.startswith(("mode", "direct "))]
    assert len(tables) == 6
    assert max(map(len, tables)) <= 80
    text = page.read_text()
    assert text.startswith("# Figures")
    assert "old" not in text
    assert "### Qwen3.5-122B-A10B Q2_K" in text
    assert "| direct | 160.00 |" in text
    (row,) = json.loads(data.read_text())["rows"]
    assert row["limits"]["depth"] == 3
    names = [(s["task"], s["engine"]) for s in row["samples"]]
    assert names.count(("decode", "direct")) == names.count(("prefill 512", "direct")) == 2
    assert names.count(("prefill 2048", "direct")) == names.count(("prefill 512", "mmap")) == 1
    assert all(s["peak"] for s in row["samples"])
    assert blockdev.device_of(tmp_path).read_ahead.read_text() == before


@pytest.mark.usefixtures("can_measure")
def test_filling_memory(tmp_path: Path) -> None:
    """All but dense weights, the 3 MiB that the program says and 64 MiB."""
    seen = tmp_path / "seen"
    done = run(
        command(tmp_path, "--quick", "--fill", patched=f"{PROGRAM}echo $* >>{seen}"), tmp_path
    )
    assert done.returncode == 0, done.stderr
    model = inspect(next(tmp_path.glob("tiny-*.gguf")))
    dense = model.tensor_bytes - model.routed_bytes
    left = (int(model.file_bytes / 0.1) - dense - (67 << 20)) >> 20
    flags = [line for line in seen.read_text().splitlines() if "-eio direct " in line]
    assert [line.count(f"-ecs {max(1, left)} ") for line in flags[:2]] == [1, 1]


@pytest.mark.usefixtures("can_measure")
def test_failing_runs_are_said(tmp_path: Path) -> None:
    argv = command(tmp_path, "--quick", patched="#!/bin/sh\necho broken >&2\nexit 3\n")
    done = run(argv, tmp_path)
    assert done.returncode == 10
    assert "broken" in done.stderr
    assert "decode: direct: failed (3) in 1 of 1 runs" in done.stdout


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--row", "minimax-iq1_m"], 2, "--model goes with one --row"),
        (["--row", "none"], 2, "none"),
        (["-m", "/none.gguf"], 9, "/none.gguf"),
        (["--rounds", "0"], 2, "--rounds"),
    ],
)
def test_bad_input(tmp_path: Path, argv: list[str], code: int, said: str) -> None:
    done = run(command(tmp_path, *argv), tmp_path)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
