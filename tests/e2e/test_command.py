"""`swapmoe run` as a user types it, with the real program behind it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swapmoe.model_spec import tensors
from tests.support.llama import repacked_mib, statistics
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
@pytest.mark.parametrize("io", ["auto", "mmap", "fault"])
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
