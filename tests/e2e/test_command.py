"""`swapmoe run` as a user types it, with the real program behind it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swapmoe.model_spec import tensors
from tests.support.llama import STREAMING, Llama, repacked_mib, statistics
from tests.support.models import cut_short, make_tiny, tiny_spec

pytestmark = pytest.mark.usefixtures("installed")

SECONDS = 60
OUTPUT_BYTES = 20_000


def swapmoe(*argv: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run the command with stdin closed; it has to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "swapmoe", *map(str, argv)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize("preset", ["tiny", "tiny-qwen3moe"])
@pytest.mark.parametrize("io", ["auto", "direct", "mmap", "fault"])
def test_run_answers_and_ends(tmp_path: Path, preset: str, io: str) -> None:
    model = make_tiny(tmp_path, preset)
    done = swapmoe("run", "-m", model, "-p", "Hello there", "-n", "8", "--io", io)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert len(done.stdout) + len(done.stderr) < OUTPUT_BYTES


def test_any_shard_starts_the_model(tmp_path: Path) -> None:
    make_tiny(tmp_path, shards=3)
    (second,) = tmp_path.glob("*-00002-of-00003.gguf")
    done = swapmoe("run", "-m", second, "-p", "Hello", "-n", "4")
    assert done.returncode == 0, done.stderr


def test_verbose_shows_the_engine(tmp_path: Path) -> None:
    model = make_tiny(tmp_path)
    done = swapmoe("run", "-m", model, "-p", "Hello", "-n", "4", "-v", "--io", "mmap")
    assert done.returncode == 0, done.stderr
    assert "expert_stream: tracking 24 routed expert slices" in done.stderr
    experts = tiny_spec().slices * tiny_spec().slice_bytes / 2**20
    assert repacked_mib(done.stderr) < experts
    assert statistics(done.stderr).hinted > 0


ACTIVE = {
    ("--cache-size", "1"): "expert_stream: cache size = 1.00 MiB",
    ("--keep-recent", "3"): "expert keep-recent window = 3 experts per layer",
    ("--fixation", "4"): "top-k pinned for the first 4 forward passes",
    ("--prefetch",): "async prefetch thread started",
}


@pytest.mark.parametrize("option", ACTIVE)
def test_each_option_is_confirmed(tmp_path: Path, option: tuple[str, ...]) -> None:
    model = make_tiny(tmp_path)
    quiet = swapmoe("run", "-m", model, "-p", "Hello", "-n", "4", *option)
    assert quiet.returncode == 0, quiet.stderr
    assert "expert" not in quiet.stderr.replace("routed experts are", "")
    loud = swapmoe("run", "-m", model, "-p", "Hello", "-n", "4", *option, "-v")
    assert loud.returncode == 0, loud.stderr
    assert ACTIVE[option] in loud.stderr


def test_all_options_at_once_and_fewer_experts(tmp_path: Path) -> None:
    options = [word for option in ACTIVE for word in option]
    override = ("--override-kv", "qwen2moe.expert_used_count=int:1")
    argv = ("run", "-m", make_tiny(tmp_path), "-p", "Hello", "-n", "4", *options)
    done = swapmoe(*argv, "--", *override)
    assert done.returncode == 0, done.stderr
    assert "experts per token and layer: 1 instead of 2" in done.stderr


def floors(folder: Path) -> Path:
    """A model that needs 2 experts of 3 slices of 162 KiB in each of 2 layers: 1.9 MiB."""
    return make_tiny(folder, "tiny-qwen3moe", embd=512, ffn=576)


@pytest.mark.parametrize(
    ("ours", "theirs", "floor"),
    [
        (["--cache-size", "1"], ["--expert-cache-size", "1"], "2"),
        (["--keep-recent", "1"], ["--expert-keep-recent", "1"], "2"),
    ],
)
def test_the_floors_are_the_engines(
    tmp_path: Path, patched: Llama, ours: list[str], theirs: list[str], floor: str
) -> None:
    model = floors(tmp_path)
    argv = ("run", "-m", model, "-p", "Hello", "-n", "4", "--io", "mmap")
    refused = swapmoe(*argv, *ours)
    assert refused.returncode == 9
    assert f"{ours[0]} {floor} " in refused.stderr
    mapped = (*STREAMING, "--expert-io", "mmap")
    engine = patched.complete(model, *mapped, *theirs, n=1, check=False)
    assert engine.returncode != 0
    assert f"the floor is {floor}" in engine.stderr
    at_floor = swapmoe(*argv, ours[0], floor)
    assert at_floor.returncode == 0, at_floor.stderr


def test_a_cache_below_the_floor_works_in_direct(tmp_path: Path) -> None:
    argv = ("run", "-m", floors(tmp_path), "-p", "Hello", "-n", "4")
    done = swapmoe(*argv, "--io", "direct", "--cache-size", "1")
    assert done.returncode == 0, done.stderr
    assert "most experts are read again" in done.stderr


def test_what_is_not_confirmed_fails(tmp_path: Path) -> None:
    log_elsewhere = tmp_path / "log"
    log_elsewhere.symlink_to("/dev/null")
    program = (
        "import contextlib, pathlib, sys; from swapmoe import activation, cli;"
        f"log = contextlib.nullcontext(pathlib.Path({str(log_elsewhere)!r}));"
        "activation.private_log = lambda: log; sys.exit(cli.main(sys.argv[1:]))"
    )
    argv = ["run", "-m", str(make_tiny(tmp_path)), "-p", "Hello", "-n", "4"]
    done = subprocess.run(
        [sys.executable, "-c", program, *argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 10
    assert "did not confirm what was asked for" in done.stderr


def test_dry_run_is_the_command_that_runs(tmp_path: Path) -> None:
    model = make_tiny(tmp_path)
    shown = swapmoe("run", "-m", model, "-p", "Hello", "-n", "4", "--dry-run", "--json")
    argv = json.loads(shown.stdout)["argv"]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr


def html(folder: Path) -> Path:
    path = folder / "page.gguf"
    path.write_text("<!DOCTYPE html><html><body>404</body></html>" * 100)
    return path


def wrong_magic(folder: Path) -> Path:
    path = make_tiny(folder)
    path.write_bytes(b"GGJT" + path.read_bytes()[4:])
    return path


def short(folder: Path) -> Path:
    path = make_tiny(folder)
    cut_short(path)
    return path


def only_header(folder: Path) -> Path:
    path = make_tiny(folder)
    cut_short(path, sum(t.nbytes for t in tensors(tiny_spec())))
    return path


def shard_missing(folder: Path) -> Path:
    path = make_tiny(folder, shards=3)
    next(folder.glob("*-00003-of-00003.gguf")).unlink()
    return path


def shard_short(folder: Path) -> Path:
    path = make_tiny(folder, shards=3)
    cut_short(next(folder.glob("*-00002-of-00003.gguf")))
    return path


def dense(folder: Path) -> Path:
    return make_tiny(folder, "tiny-dense")


def missing(folder: Path) -> Path:
    return folder / "none.gguf"


def a_folder(folder: Path) -> Path:
    return folder


@pytest.mark.parametrize(
    "broken",
    [missing, a_folder, html, wrong_magic, short, only_header, shard_missing, shard_short, dense],
)
def test_bad_models_are_refused_before_the_start(tmp_path: Path, broken: object) -> None:
    assert callable(broken)
    done = swapmoe("run", "-m", broken(tmp_path), "-p", "Hello")
    assert done.returncode == 9
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert any(line.startswith("error: ") for line in lines)
    assert any(line.startswith("hint: ") for line in lines)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--frobnicate"], "--frobnicate"),
        (["--io", "carrier-pigeon"], "carrier-pigeon"),
        (["--", "--no-mmap"], "--no-mmap"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, argv: list[str], said: str) -> None:
    done = swapmoe("run", "-m", make_tiny(tmp_path), "-p", "Hello", *argv)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_config_key_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "swapmoe.toml"
    config.write_text("[run]\ncolour = 1\n")
    done = swapmoe("run", "--config", config, "-m", make_tiny(tmp_path), "-p", "Hello")
    assert done.returncode == 3
    assert "colour" in done.stderr
