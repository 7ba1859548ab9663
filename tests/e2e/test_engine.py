"""The engine's own C++ tests, two models in one process, and the options of the programs."""

import json
import re
from pathlib import Path

import pytest

from swapmoe.run import capture
from tests.support.llama import Llama, statistics, streaming
from tests.support.models import make_tiny, tiny_spec

UNIT_TEST = "test-expert-stream"
DIRECT_TEST = "test-expert-direct"
PROGRAMS = ("llama-cli", "llama-server", "llama-completion", "llama-perplexity", "llama-bench")


def unit_test(patched: Llama, work: Path, *models: Path, program: str = UNIT_TEST) -> str:
    """Run the C++ tests in a folder on a real disk; return what they print."""
    return capture([patched.bin_dir / program, *models], cwd=work, timeout=600).stdout


def test_unit_tests_pass(patched: Llama, tmp_path: Path) -> None:
    assert "all tests passed" in unit_test(patched, tmp_path)


def test_unit_tests_of_direct_pass(patched: Llama, tmp_path: Path) -> None:
    assert "all tests passed" in unit_test(patched, tmp_path, program=DIRECT_TEST)


def test_two_models_in_one_process(patched: Llama, tmp_path: Path) -> None:
    models = [make_tiny(tmp_path, preset) for preset in ("tiny", "tiny-qwen3moe")]
    assert "all tests passed" in unit_test(patched, tmp_path, *models)


def test_cache_size_holds_over_passes(patched: Llama, tmp_path: Path) -> None:
    """With mincore: pages of routed experts in memory after each of 200 passes, page cache too."""
    shape = {"experts": 64, "used": 4, "embd": 256, "ffn": 512, "heads": 8, "layers": 4}
    out = unit_test(patched, tmp_path, make_tiny(tmp_path, "tiny-qwen3moe", **shape))
    assert out.count("test_cache_size: ") == 2
    assert "all tests passed" in out


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_know_the_options(patched: Llama, program: str) -> None:
    shown = capture([patched.bin_dir / program, "--help"], timeout=60).stdout
    assert "--expert-streaming" in shown
    assert "--expert-io" in shown


def test_observer_adds_one_node_per_layer(patched: Llama, tmp_path: Path) -> None:
    model = make_tiny(tmp_path)

    def nodes(*flags: str) -> int:
        log = bench(patched, model, "-v", *flags)[2]
        return max(int(found) for found in re.findall(r"graph:? nodes +=? *(\d+)", log))

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
        ("-es", "1", "--expert-cache-size", "-1"),
        ("-es", "1", "--expert-cache-size", "99999999999999999999"),
        ("-es", "1", "--expert-keep-recent", "4294967296"),
        ("-es", "1", "--expert-fixation", "2x"),
        ("-es", "1", "--expert-prefetch", "yes"),
    ],
)
def test_bench_refuses_bad_lists(patched: Llama, tmp_path: Path, flags: tuple[str, ...]) -> None:
    code, _, log = bench(patched, make_tiny(tmp_path), *flags, check=False)
    assert code == 1
    assert "error: " in log
    assert "--expert" in log


@pytest.mark.parametrize(
    "flags",
    [
        ("--expert-cache-size", "-1"),
        ("--expert-cache-size", "1.5"),
        ("--expert-cache-size", "9223372036854775808"),
        ("--expert-keep-recent", "2147483648"),
        ("--expert-keep-recent", ""),
        ("--expert-fixation", "0x4"),
        ("--expert-fixation", "many"),
    ],
)
def test_bad_numbers_are_usage_errors(
    patched: Llama, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    done = patched.complete(make_tiny(tmp_path), *streaming("mmap"), *flags, n=1, check=False)
    assert done.returncode == 1
    assert f'error while handling argument "{flags[0]}"' in done.stderr
    assert "loading model" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--expert-keep-recent", "1"), "the floor is 2"),
        (("--expert-cache-size", "1"), "the floor is 2 MiB"),
    ],
)
def test_limits_below_the_floor_are_refused(
    patched: Llama, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    shape = {"embd": 512, "ffn": 512, "heads": 32, "shared_ffn": 512}
    model = make_tiny(tmp_path, **shape)
    done = patched.complete(model, *streaming("mmap"), *flags, n=1, check=False)
    assert done.returncode not in (0, -6, -11)
    assert said in done.stderr


def test_each_option_says_that_it_is_on(patched: Llama, tmp_path: Path) -> None:
    options = "--expert-keep-recent 3 --expert-cache-size 1 --expert-fixation 4 --expert-prefetch"
    log = patched.complete(make_tiny(tmp_path), *streaming("mmap"), *options.split()).stderr
    assert "expert keep-recent window = 3 experts per layer" in log
    assert "expert_stream: cache size = 1.00 MiB" in log
    assert "expert fixation active — top-k pinned for the first 4 forward passes" in log
    assert "async prefetch thread started" in log
    assert re.search(r"expert_stream: async prefetch issued \d+ page hints across \d layers", log)


def test_fixation_refuses_several_sequences(patched: Llama, tmp_path: Path) -> None:
    flags = ("--expert-fixation", "2", "-np", "2")
    done = patched.complete(make_tiny(tmp_path), *streaming("mmap"), *flags, n=1, check=False)
    assert done.returncode not in (0, -6, -11)
    assert "expert fixation needs one sequence, got 2" in done.stderr


def test_fixation_of_one_pass_changes_nothing(patched: Llama, tmp_path: Path) -> None:
    model = make_tiny(tmp_path, "tiny-qwen3moe", experts=16, used=4)
    plain = patched.session(model, tmp_path, *streaming("mmap"))
    assert patched.session(model, tmp_path, *streaming("mmap"), "--expert-fixation", "1") == plain
    pinned = patched.session(model, tmp_path, *streaming("mmap"), "--expert-fixation", "8")
    assert pinned.tokens != plain.tokens
