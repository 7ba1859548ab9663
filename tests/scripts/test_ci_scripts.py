"""The workflows only call scripts that are here, and those scripts do what the workflows expect."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from swapmoe.pins import Pin
from tests.support.ports import LATER, later, replace
from tests.support.upstream import Mini

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
NIGHTLY = ROOT / "scripts" / "port_nightly.py"


def steps(file: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(file.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_there_are_three() -> None:
    assert [file.stem for file in WORKFLOWS] == ["ci", "port-nightly", "release"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_steps_call_scripts_that_run_here_too(file: Path) -> None:
    found = yaml.safe_load(file.read_text())
    assert "permissions" in found
    assert all("timeout-minutes" in job for job in found["jobs"].values())
    called = []
    for step in steps(file):
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
        else:
            called += re.findall(r"(?m)(?:^|\s)((?:scripts|\.ci)/[\w-]+)", step["run"])
            assert "${{" not in step["run"], "expressions go through env, never into a shell"
    assert called
    for name in called:
        assert os.access(ROOT / name, os.X_OK), name


def run_nightly(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(NIGHTLY), str(folder), *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_nightly_writes_everything_and_says_drift(mini: Mini, pin: Pin, tmp_path: Path) -> None:
    later(mini, replace("src/graph.cpp", "ids = top_k(logits)", "ids = top_k(logits, 1)"))
    out = tmp_path / "out"
    done = run_nightly(out, LATER, mini.clone)
    assert done.returncode == 0, done.stderr
    assert "| b20 | 3 | 1 |" in (out / "ports.md").read_text()
    assert all((out / f"ports.{kind}").is_file() for kind in ("csv", "html", "svg"))
    assert (out / "outputs").read_text() == f"drift=true\ntarget={LATER}\n"
    line = (out / "nightly.csv").read_text().splitlines()[1]
    assert line.split(",")[1:] == ["b10", LATER, "conflict", "1", "1"]
    issue = (out / "issue.md").read_text()
    assert "@" not in issue
    assert "conflict: src/graph.cpp `build_moe`" in issue
    assert json.loads((out / "b10.json").read_text())["clean"] is False
    assert (out / "b10.xml").is_file()


def test_nightly_without_drift_and_with_a_wrong_call(mini: Mini, pin: Pin, tmp_path: Path) -> None:
    later(mini, replace("CMakeLists.txt", "llama", "llama2"))
    assert run_nightly(tmp_path / "out", LATER, mini.clone).returncode == 0
    assert (tmp_path / "out/outputs").read_text().startswith("drift=false\n")
    assert run_nightly(tmp_path / "out", "nowhere", mini.clone).returncode == 2
    assert run_nightly(tmp_path / "out", "b1", mini.clone, "more").returncode == 2


def test_the_other_pins_are_tested_too(tmp_path: Path) -> None:
    """With a stand-in for scripts/test, which fails on one pin."""
    scripts = tmp_path / "scripts"
    for name in ("b1", "b2", "b3"):
        (tmp_path / "patches" / name).mkdir(parents=True)
        (tmp_path / "patches" / name / "manifest.toml").touch()
    (tmp_path / "patches" / "PIN").write_text("b2\n")
    scripts.mkdir()
    shutil.copy(ROOT / "scripts" / "test-pins", scripts)
    stand_in = scripts / "test"
    stand_in.write_text('#!/bin/sh\necho "$SWAPMOE_PIN $*" >>seen\n[ "$SWAPMOE_PIN" != b1 ]\n')
    stand_in.chmod(0o755)
    done = subprocess.run([scripts / "test-pins", "-x"], capture_output=True, check=False)
    assert done.returncode == 1
    assert (tmp_path / "seen").read_text() == "b1 tests/e2e -x\nb3 tests/e2e -x\n"


@pytest.mark.parametrize(("listed", "expected"), [("", "issue create"), ("7", "issue edit 7")])
def test_the_issue_is_opened_once(listed: str, expected: str, tmp_path: Path) -> None:
    gh = tmp_path / "gh"
    gh.write_text(f'#!/bin/sh\n[ "$2" = list ] && echo "{listed}" && exit\necho "$@"\n')
    gh.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = ROOT / "scripts" / "port-issue"
    done = subprocess.run([script, "out"], env=env, capture_output=True, text=True, check=True)
    assert expected in done.stdout
    assert "out/issue.md" in done.stdout
