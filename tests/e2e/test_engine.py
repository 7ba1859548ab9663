"""The engine's own C++ tests, two models in one process, and the options of the programs."""

import json
import re
from pathlib import Path

import pytest

from swapmoe.run import capture
from tests.support.llama import Llama, statistics, streaming
from tests.support.models import make_tiny, tiny_spec

UNIT_TEST = "test-expert-stream"
PROGRAMS = ("llama-cli", "llama-server", "llama-completion", "llama-perplexity", "llama-bench")


def unit_test(patched: Llama, work: Path, *models: Path) -> str:
    """Run the C++ tests in a folder on a real disk; return what they print."""
    return capture([patched.bin_dir / UNIT_TEST, *models], cwd=work, timeout=100).stdout


def test_unit_tests_pass(patched: Llama, tmp_path: Path) -> None:
    assert "all tests passed" in unit_test(patched, tmp_path)


def test_two_models_in_one_process(patched: Llama, tmp_path: Path) -> None:
    models = [make_tiny(tmp_path, preset) for preset in ("tiny", "tiny-qwen3moe")]
    assert "all tests passed" in unit_test(patched, tmp_path, *models)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_know_the_options(patched: Llama, program: str) -> None:
    shown = capture([patched.bin_dir / program, "--help"], timeout=60).stdout
    assert "--expert-streaming" in shown
    assert "--expert-io" in shown


def test_observer_adds_one_node_per_layer(patched: Llama, tmp_path: Path) -> None:
    model = make_tiny(tmp_path)

    def nodes(*flags: str) -> int:
        log = bench(patched, model, "-v", *flags)[2]
        return max(int(found) for found in re.findall(r"graph nodes +=? *(\d+)", log))

    assert nodes("-es", "1", "-eio", "fault") == nodes() + tiny_spec().layers
    assert nodes("-es", "1", "-eio", "mmap") == nodes() + tiny_spec().layers


def test_each_shard_is_hinted(patched: Llama, tmp_path: Path) -> None:
    model = make_tiny(tmp_path, shards=4)
    counted = statistics(patched.complete(model, *streaming("mmap"), n=4).stderr)
    assert counted.hinted == counted.routed > 0
    assert counted.hint_errors == 0


def test_io_without_streaming_is_said(patched: Llama, tmp_path: Path) -> None:
    log = patched.complete(make_tiny(tmp_path), "--expert-io", "mmap", n=1).stderr
    assert "--expert-* options have no effect without --expert-streaming" in log


def bench(patched: Llama, model: Path, *flags: str, check: bool = True) -> tuple[int, str, str]:
    argv = [
        patched.bin_dir / "llama-bench",
        "-m",
        model,
        "-p",
        "8",
        "-n",
        "4",
        "-r",
        "1",
        "-t",
        "2",
    ]
    done = capture([*argv, *flags], timeout=100, check=check)
    return done.returncode, done.stdout, done.stderr


def test_bench_compares_modes_in_one_run(patched: Llama, tmp_path: Path) -> None:
    flags = ("--expert-streaming", "0,1", "--expert-io", "mmap,fault", "-o", "json")
    _, out, _ = bench(patched, make_tiny(tmp_path), *flags)
    runs = [(run["expert_stream"], run["n_prompt"], run["n_gen"]) for run in json.loads(out)]
    assert runs == [(mode, *what) for mode in ("off", "mmap", "fault") for what in ((8, 0), (0, 4))]


def test_bench_shows_the_column_only_when_asked(patched: Llama, tmp_path: Path) -> None:
    model = make_tiny(tmp_path)
    assert "expert_stream" not in bench(patched, model)[1]
    assert "| expert_stream |" in bench(patched, model, "-es", "1")[1]


@pytest.mark.parametrize(
    "flags",
    [
        ("--expert-streaming", "2"),
        ("--expert-streaming", "1,x"),
        ("--expert-streaming", ""),
        ("--expert-streaming",),
        ("-es", "1", "--expert-io", "pigeon"),
        ("--expert-io", "mmap"),
        ("-es", "0", "--expert-io", "mmap"),
    ],
)
def test_bench_refuses_bad_lists(patched: Llama, tmp_path: Path, flags: tuple[str, ...]) -> None:
    code, _, log = bench(patched, make_tiny(tmp_path), *flags, check=False)
    assert code == 1
    assert "error: " in log
    assert "--expert" in log
