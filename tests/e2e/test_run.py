"""`swapmoe run` with the real programs: it ends by itself, and says what it did."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swapmoe import binhelp, build, pins, receipts, smoke
from swapmoe.paths import build_dir
from swapmoe.receipts import Receipt
from tests.support.llama import Llama
from tests.support.models import make_tiny

pytestmark = pytest.mark.build


@pytest.fixture
def installed(patched: Llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Receipt:
    """A receipt for the ready programs, in a cache of its own."""
    monkeypatch.setenv("SWAPMOE_CACHE_DIR", str(tmp_path / "cache"))
    pin = pins.load()
    receipt = Receipt(
        key="ready",
        tag=pin.tag,
        inputs={"tree id": pin.manifest.series.tree, "sanitize": "none"},
        bin_dir=patched.bin_dir,
        targets=build.TARGETS,
        tests=False,
        files=receipts.scan(patched.bin_dir),
        version_line=smoke.version_line(patched.bin_dir, ["llama-cli"]),
        native=True,
        cpu_flags=(),
        amx="absent",
        smoke="llama-bench",
        seconds=0.0,
    )
    receipts.write(build_dir("ready"), receipt)
    return receipt


def swapmoe_run(*argv: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "swapmoe", "run", *map(str, argv)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
        env=dict(os.environ),
    )


def test_the_program_has_every_option_of_the_table(installed: Receipt) -> None:
    assert installed.version_line == "version: 10235 (221f0f635)"
    assert binhelp.check(installed.program("llama-cli")).conclusive


def test_the_smoke_test_passes(installed: Receipt) -> None:
    assert smoke.smoke(installed.bin_dir) == "llama-bench"


def test_a_prompt_ends_by_itself(installed: Receipt, tmp_path: Path) -> None:
    model = make_tiny(tmp_path)
    argv = ("-m", model, "-p", "hi", "-n", "8", "--seed", "1", "--threads", "2")
    answers = []
    for io in ("mmap", "fault"):
        done = swapmoe_run(*argv, "--io", io, "-v")
        assert done.returncode == 0, done.stderr
        assert len(done.stdout) < 4096
        assert b"tracking 24 routed expert slices" in done.stderr
        assert b"expert_stream: statistics: " in done.stderr
        answers.append(done.stdout.partition(b"> hi\n")[2].partition(b"[ Prompt:")[0])
    assert answers[0].strip()
    assert answers[0] == answers[1]


def test_split_and_difficult_names(installed: Receipt, tmp_path: Path) -> None:
    folder = tmp_path / "it's a [naïve] 模型"
    folder.mkdir()
    first = make_tiny(folder, shards=3)
    last = first.with_name(first.name.replace("00001-of", "00003-of"))
    done = swapmoe_run("-m", last, "-p", "hi", "-n", "2")
    assert done.returncode == 0, done.stderr
    assert b"is a later shard" in done.stderr


def test_the_childs_own_error_is_mirrored(installed: Receipt, tmp_path: Path) -> None:
    done = swapmoe_run("-m", make_tiny(tmp_path), "-p", "hi", "--", "--no-such-option")
    assert done.returncode == 1
    assert b"--no-such-option" in done.stderr


def test_a_dense_model_is_refused_first(installed: Receipt, tmp_path: Path) -> None:
    done = swapmoe_run("-m", make_tiny(tmp_path, "tiny-dense"), "-p", "hi")
    assert done.returncode == 9
    assert done.stdout == b""
