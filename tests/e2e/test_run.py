"""The launcher's assumptions about the real programs: options, speech, names, exit codes."""

import re
from pathlib import Path

import pytest

from swapmoe import binhelp, demo, launch, smoke
from swapmoe.config import RunSettings
from swapmoe.flag_table import CLI, SERVER, rows
from swapmoe.receipts import Receipt
from swapmoe.run import capture
from tests.support.chosen_pin import chosen_pin
from tests.support.llama import Llama
from tests.support.models import make_tiny

pytestmark = pytest.mark.usefixtures("installed")


@pytest.mark.parametrize("program", [CLI, SERVER])
def test_the_program_has_every_option_of_the_table(patched: Llama, program: str) -> None:
    pin = chosen_pin()
    said = smoke.version_line(patched.bin_dir, [program])
    assert re.findall(r"\b[0-9a-f]{5,}\b", said) == [str(pin.build_number), pin.commit[:9]]
    found = binhelp.check(patched.bin_dir / program, rows(program))
    assert found.conclusive
    listed = {name for row in rows(program) for name in row.others} & set(found.options)
    assert {"-m", "-t", "-cram", "-lm"} <= listed


@pytest.mark.parametrize("program", [CLI, SERVER])
def test_every_variable_of_the_table_is_one_of_the_programs(patched: Llama, program: str) -> None:
    text = capture([patched.bin_dir / program, "--help"]).stdout
    absent = {"RPC"}  # only in builds with that backend
    if "--mmap" not in text:  # since b10878 there is --load-mode only
        absent |= {"MMAP", "MLOCK", "DIO"}
    for row in rows(program):
        for variable in set(row.env) - absent:
            assert f"(env: LLAMA_ARG_{variable})" in text, row.option


def test_the_smoke_test_passes(receipt: Receipt) -> None:
    assert smoke.smoke(receipt.bin_dir) == "llama-bench"


def test_the_demo_finds_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.build, "ensure_built", lambda *_: None)
    monkeypatch.setattr(demo, "demo_model", lambda: make_tiny(tmp_path))
    found = demo.demo(chosen_pin(), demo.build.BuildOptions(), RunSettings(threads=2))
    assert found.slices == 24
    assert found.speed > 0
    assert found.text
    assert found.statistics["routed"] > 0


def test_difficult_names_and_the_childs_exit_code(tmp_path: Path) -> None:
    folder = tmp_path / "it's a [naïve] 模型"
    folder.mkdir()
    model = make_tiny(folder)
    for extra, code in (((), 0), (("--temp", "hot"), 1)):
        request = launch.Request(model, "hi", RunSettings(n_predict=2, threads=2), extra)
        plan = launch.prepare(request, chosen_pin())
        assert capture(plan.argv, check=False, timeout=60).returncode == code
