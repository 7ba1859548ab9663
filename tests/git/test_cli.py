"""The command line as a user sees it: exit codes, three-part messages, JSON alone on stdout."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pytest

from swapmoe import cli, paths, upstream
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin
from tests.support.upstream import OVERLAY, TAG, Mini


class Ran:
    """Exit code and both streams of one command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Run = Callable[..., Ran]


@pytest.fixture
def swapmoe(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str | Path) -> Ran:
        capsys.readouterr()
        code = cli.main([str(word) for word in argv])
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run


def test_fetch_apply_twice_status_verify(mini: Mini, swapmoe: Run) -> None:
    early = swapmoe("patch", "status")
    assert (early.code, early.out) == (5, "")
    assert early.err.startswith("error: ")
    assert "\nhint: swapmoe patch apply" in early.err
    assert swapmoe("fetch").out.startswith(f"llama.cpp {TAG}: ")
    assert swapmoe("patch", "status").out.startswith("clean: ")
    first = swapmoe("patch", "apply")
    assert (first.code, first.out.split(":")[0]) == (0, f"{TAG} applied")
    again = swapmoe("patch", "apply")
    assert (again.code, again.out.split(":")[0]) == (0, f"{TAG} was applied already")
    assert swapmoe("patch", "status").out.startswith("applied: ")
    assert swapmoe("patch", "verify").code == 0


def test_json_is_alone_on_stdout(mini: Mini, pin: Pin, swapmoe: Run) -> None:
    swapmoe("patch", "apply")
    status = json.loads(swapmoe("patch", "status", "--json").out)
    assert status["state"] == "applied"
    assert status["files"][OVERLAY] == "after"
    assert status["problems"] == status["drift"] == []
    assert json.loads(swapmoe("patch", "verify", "--json").out)["tree"] == pin.manifest.series.tree
    linted = json.loads(swapmoe("patch", "lint", "--json").out)
    assert linted["hook_lines"] == {"added": 4, "removed": 0}
    shown = json.loads(swapmoe("patch", "show", "--json").out)
    assert shown["patches"][0]["patch"] == "build-add-sources.patch"


def test_verify_names_a_changed_file_and_exits_7(mini: Mini, swapmoe: Run) -> None:
    swapmoe("patch", "apply")
    file = paths.source_dir(TAG) / OVERLAY
    file.write_text(file.read_text() + "//\n")
    failed = swapmoe("patch", "verify", "--json")
    assert (failed.code, failed.out) == (7, "")
    assert f"  {OVERLAY}: changed\n" in failed.err
    assert "--force" in failed.err
    assert swapmoe("patch", "status").out.startswith("conflict: ")
    assert swapmoe("patch", "apply").code == 7
    assert swapmoe("patch", "apply", "--force").code == 0
    assert swapmoe("patch", "verify").code == 0


def test_partial_exits_7_and_lists_files(mini: Mini, checkout: GitRepo, swapmoe: Run) -> None:
    checkout.run("apply", mini.series / "graph-observe-top-k.patch")
    status = swapmoe("patch", "status", "--tree", checkout.path)
    assert status.out.startswith("partial: ")
    assert "  src/graph.cpp: after\n" in status.out
    assert swapmoe("patch", "apply", "--tree", checkout.path).code == 7


def test_dirty_tree_exits_5_naming_the_file(mini: Mini, checkout: GitRepo, swapmoe: Run) -> None:
    (checkout.path / "stray.rej").write_text("x")
    failed = swapmoe("patch", "apply", "--tree", checkout.path)
    assert failed.code == 5
    assert "  left over from patch: stray.rej\n" in failed.err


def test_own_tree_is_applied_and_verified_but_never_forced(
    mini: Mini, pin: Pin, checkout: GitRepo, swapmoe: Run
) -> None:
    assert swapmoe("patch", "apply", "--tree", checkout.path, "--force").code == 2
    assert swapmoe("patch", "apply", "--tree", checkout.path).code == 0
    assert swapmoe("patch", "verify", "--tree", checkout.path).code == 0
    assert not paths.source_dir(TAG).exists()


def test_lint_findings_exit_6_with_rule_ids(mini: Mini, swapmoe: Run) -> None:
    (mini.series / "stray-x.patch").write_text("x")
    failed = swapmoe("patch", "lint")
    assert failed.code == 6
    assert "  P102 stray-x.patch: is not in series\n" in failed.err
    assert "hook lines: 4 added, 0 removed in 3 files\n" in failed.out
    assert "not recomputed" in failed.err


def test_export_to_a_file_and_to_stdout_is_the_same(
    mini: Mini, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert cli.main(["patch", "export", "-o", str(tmp_path / "all.patch")]) == 0
    capfdbinary.readouterr()
    assert cli.main(["patch", "export"]) == 0
    assert capfdbinary.readouterr().out == (tmp_path / "all.patch").read_bytes()


def test_show_one_patch_prints_it_verbatim(
    mini: Mini, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert cli.main(["patch", "show", "graph-observe-top-k"]) == 0
    data = (mini.series / "graph-observe-top-k.patch").read_bytes()
    assert capfdbinary.readouterr().out == data
    assert cli.main(["patch", "show", "nothing"]) == 2


def test_refresh_writes_a_first_manifest(mini: Mini, pin: Pin, swapmoe: Run) -> None:
    file = mini.series / "manifest.toml"
    before = file.read_bytes()
    file.unlink()
    failed = swapmoe("patch", "refresh")
    assert failed.code == 6
    facts = pin.manifest.upstream
    options = ("--commit", facts.commit, "--archive-sha256", facts.archive_sha256)
    assert swapmoe("patch", "refresh", *options).code == 0
    assert file.read_bytes() == before
    assert swapmoe("patch", "refresh").code == 0
    assert file.read_bytes() == before
    assert swapmoe("patch", "refresh", "--commit", "221f0f635").code == 2


@pytest.mark.parametrize("argv", [["nonsense"], ["fetch", "--nonsense"], ["patch", "apply", "x"]])
def test_wrong_command_lines_exit_2(argv: Sequence[str], swapmoe: Run) -> None:
    failed = swapmoe(*argv)
    assert (failed.code, failed.out) == (2, "")
    assert "Error: " in failed.err


def test_unknown_pin_exits_2_and_lists_the_known(mini: Mini, pin: Pin, swapmoe: Run) -> None:
    failed = swapmoe("fetch", "--pin", "221f0f635")
    assert failed.code == 2
    assert f"  {TAG} = {pin.commit}\n" in failed.err


def test_a_bug_exits_1_with_a_log_and_no_traceback(
    mini: Mini, swapmoe: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "ensure_source", lambda *_a, **_k: 1 // 0)
    failed = swapmoe("fetch")
    assert failed.code == 1
    assert "Traceback" not in failed.err
    log = next(line for line in failed.err.splitlines() if "log: " in line).split("log: ")[1]
    assert "ZeroDivisionError" in Path(log).read_text()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, click.Abort])
def test_an_interrupt_exits_130(
    stop: type[BaseException], mini: Mini, swapmoe: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_args: object, **_options: object) -> None:
        raise stop

    monkeypatch.setattr(upstream, "ensure_source", interrupted)
    assert swapmoe("fetch").code == 130


def test_missing_git_exits_4(mini: Mini, swapmoe: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    failed = swapmoe("fetch")
    assert failed.code == 4
    assert "error: program not found: git" in failed.err


def test_unwritable_cache_exits_5(
    mini: Mini, swapmoe: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    (mini.root / "folder").mkdir()
    failed = swapmoe("fetch", "--source", mini.root / "folder")
    assert failed.code == 5
    assert "No space left on device" in failed.err
    assert "hint: " in failed.err


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom swapmoe.cli import main\ncode = main(['--help'])\n"
        "heavy = {'git', 'rich', 'pydantic', 'unidiff', 'unearth', 'gguf', 'numpy', 'psutil'}\n"
        "found = heavy & set(sys.modules)\nassert not found, found\nsys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "patch" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="a pipe that closes early")
def test_a_closed_pipe_is_no_crash(mini: Mini) -> None:
    command = f"{sys.executable} -m swapmoe patch export | head -c 1 > /dev/null"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert not paths.logs_dir().joinpath("x").exists()
    assert list(paths.logs_dir().iterdir()) == []
