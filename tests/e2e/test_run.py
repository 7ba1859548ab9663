"""The launcher's assumptions about the real programs: options, speech, names, exit codes."""

from pathlib import Path

import pytest

from swapmoe import binhelp, demo, launch, pins, smoke
from swapmoe.config import RunSettings
from swapmoe.receipts import Receipt
from swapmoe.run import capture
from tests.support.llama import Llama
from tests.support.models import make_tiny

pytestmark = pytest.mark.usefixtures("installed")


def test_the_program_has_every_option_of_the_table(patched: Llama) -> None:
    line = smoke.version_line(patched.bin_dir, ["llama-cli"])
    assert line == "version: 10235 (221f0f635)"
    assert binhelp.check(patched.bin_dir / "llama-cli").conclusive


def test_the_smoke_test_passes(receipt: Receipt) -> None:
    assert smoke.smoke(receipt.bin_dir) == "llama-bench"


def test_the_demo_finds_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.build, "ensure_built", lambda *_: None)
    monkeypatch.setattr(demo, "demo_model", lambda: make_tiny(tmp_path))
    found = demo.demo(pins.load(), demo.build.BuildOptions(), RunSettings(threads=2))
    assert found.slices == 24
    assert found.speed > 0
    assert found.text
    assert found.statistics["routed"] > 0


def test_difficult_names_and_the_childs_exit_code(tmp_path: Path) -> None:
    folder = tmp_path / "it's a [naïve] 模型"
    folder.mkdir()
    model = make_tiny(folder)
    for extra, code in (((), 0), (("--no-such-option",), 1)):
        request = launch.Request(model, "hi", RunSettings(n_predict=2, threads=2), extra)
        plan = launch.prepare(request, pins.load())
        assert capture(plan.argv, check=False, timeout=60).returncode == code
