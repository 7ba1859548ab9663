"""Other people's settings, environments, line endings and left-overs (C01, C06, C12, C14)."""

import os
from pathlib import Path

import pytest

from swapmoe import apply, gitrepo, pins, tree
from swapmoe.errors import ApplyError, UpstreamError, UsageError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin
from tests.support.upstream import TAG, Mini

HOSTILE = {
    "apply.whitespace=error": "[apply]\n\twhitespace = error\n",
    "apply.whitespace=fix": "[apply]\n\twhitespace = fix\n",
    "core.autocrlf=true": "[core]\n\tautocrlf = true\n",
    "diff.noprefix": "[diff]\n\tnoprefix = true\n",
    "diff.mnemonicPrefix": "[diff]\n\tmnemonicPrefix = true\n",
    "core.quotePath": "[core]\n\tquotePath = true\n",
    "color.ui=always": "[color]\n\tui = always\n",
    "commit.gpgsign": "[commit]\n\tgpgsign = true\n",
    "everything": "[diff]\n\tcontext = 0\n\talgorithm = histogram\n[core]\n\tabbrev = 4\n",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("where", ["global", "local"])
def test_user_settings_change_nothing(
    name: str, where: str, pin: Pin, checkout: GitRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = apply.export(pin, checkout, "HEAD")
    if where == "global":
        (Path.home() / ".gitconfig").write_text(HOSTILE[name])
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(Path.home() / ".gitconfig"))
    else:
        config = checkout.path / ".git/config"
        config.write_text(config.read_text() + HOSTILE[name])
    assert apply.export(pin, checkout, "HEAD") == plain
    apply.apply(pin, checkout)
    assert checkout.tree_of("HEAD") == pin.manifest.series.tree
    assert apply.verify(pin, checkout).tree_id == pin.manifest.series.tree


def test_trailing_blanks_in_added_lines_survive(mini: Mini, pin: Pin, checkout: GitRepo) -> None:
    (Path.home() / ".gitconfig").write_text(HOSTILE["apply.whitespace=fix"])
    patch = mini.series / "graph-observe-top-k.patch"
    patch.write_text(patch.read_text().replace("observe(ctx, ids);\n", "observe(ctx, ids);  \n"))
    apply.refresh(mini.series, pin.manifest.upstream, checkout, "HEAD")
    apply.apply(pins.load(), checkout)
    assert "ids);  \n" in (checkout.path / "src/graph.cpp").read_text()


@pytest.mark.parametrize("variable", ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"])
def test_inherited_git_variables_are_ignored(
    variable: str, mini: Mini, pin: Pin, checkout: GitRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = mini.clone
    head = GitRepo(other).rev("HEAD")
    monkeypatch.setenv(variable, str(other / ".git" if variable == "GIT_DIR" else other))
    apply.apply(pin, checkout)
    assert checkout.tree_of("HEAD") == pin.manifest.series.tree
    assert os.environ[variable]
    assert GitRepo(other).rev("HEAD") == head


def test_a_folder_inside_another_repository_is_refused(mini: Mini, pin: Pin) -> None:
    inside = mini.clone / "src"
    with pytest.raises(UpstreamError, match="not the top of a git checkout"):
        gitrepo.open_checkout(inside)


def test_works_inside_another_repository(
    mini: Mini, pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAPMOE_CACHE_DIR", str(mini.clone / "cache"))
    monkeypatch.chdir(mini.clone)
    assert apply.ensure_patched(pin).tree_id == pin.manifest.series.tree


def test_crlf_patch_is_applied_with_lf_and_said(
    pin: Pin, checkout: GitRepo, capsys: pytest.CaptureFixture[str]
) -> None:
    for patch in pin.series_dir.glob("*.patch"):
        lines = patch.read_bytes().replace(b"\n \n", b"\n\n")
        patch.write_bytes(lines.replace(b"\n", b"\r\n"))
    bare = pin.series_dir / "graph-observe-top-k.patch"
    assert b"\r\n\r\n" in bare.read_bytes()
    manifest = apply.refresh(pin.series_dir, pin.manifest.upstream, checkout, "HEAD")
    assert manifest.series.tree == pin.manifest.series.tree
    apply.apply(pins.load(), checkout)
    assert f"note: {bare.name} has CRLF line endings" in capsys.readouterr().err
    with_cr = checkout.run("grep", "--name-only", "-I", "-e", "\r", "HEAD").text
    assert with_cr.splitlines() == ["HEAD:scripts/run.bat"]


def test_crlf_copy_of_the_patch_matches_the_manifest(pin: Pin, checkout: GitRepo) -> None:
    patch = pin.series_dir / "graph-observe-top-k.patch"
    patch.write_bytes(patch.read_bytes().replace(b"\n", b"\r\n"))
    apply.apply(pin, checkout)
    assert checkout.tree_of("HEAD") == pin.manifest.series.tree


def test_crlf_checkout_is_a_conflict_that_names_line_endings(pin: Pin, checkout: GitRepo) -> None:
    file = checkout.path / "src/graph.cpp"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(ApplyError) as caught:
        apply.apply(pin, checkout)
    assert "src/graph.cpp: line-endings" in caught.value.evidence


def test_sources_are_checked_out_without_line_ending_conversion(mini: Mini, pin: Pin) -> None:
    (Path.home() / ".gitconfig").write_text(HOSTILE["core.autocrlf=true"])
    path = apply.ensure_patched(pin).path
    assert b"\r" not in (path / "src/graph.cpp").read_bytes()
    assert GitRepo(path).run("config", "core.autocrlf").text == "false"


LEFT_OVERS = {
    "untracked": "untracked: stray.cpp",
    "rej": "left over from patch: src/graph.cpp.rej",
    "ignored orig": "left over from patch: deep.log/loader.cpp.orig",
    "staged": "staged: convert.py",
    "deleted": "deleted: convert.py",
    "lock": "another git is running, or one was killed: ",
    "merge": "a merge is unfinished: ",
    "head": "HEAD is ",
    "extra commit": "HEAD is ",
}


def make_left_over(kind: str, repo: GitRepo) -> None:
    top = repo.path
    if kind == "untracked":
        (top / "stray.cpp").write_text("x")
    elif kind == "rej":
        (top / "src/graph.cpp.rej").write_text("x")
    elif kind == "ignored orig":
        (top / "deep.log").mkdir()
        (top / "deep.log/loader.cpp.orig").write_text("x")
    elif kind == "staged":
        (top / "convert.py").write_text("x")
        repo.run("add", "convert.py")
    elif kind == "deleted":
        (top / "convert.py").unlink()
    elif kind == "lock":
        (top / ".git/index.lock").touch()
    elif kind == "merge":
        (top / ".git/MERGE_HEAD").write_text(f"{repo.rev('HEAD')}\n")
    elif kind == "extra commit":
        repo.run("commit", "--quiet", "--allow-empty", "-m", "same files")
        (top / "notes.txt").write_text("more")
        repo.run("add", "notes.txt")
        repo.run("commit", "--quiet", "-m", "other files")
    else:
        empty = repo.run("commit-tree", f"{repo.rev('HEAD')}^{{tree}}", "-m", "x").text
        (top / "other.txt").write_text("x")
        repo.run("checkout", "--quiet", "--detach", empty)
        repo.run("add", "other.txt")
        repo.run("commit", "--quiet", "--amend", "-m", "another root")


@pytest.mark.parametrize("kind", LEFT_OVERS)
def test_each_left_over_is_named_and_kept(kind: str, pin: Pin, checkout: GitRepo) -> None:
    make_left_over(kind, checkout)
    files = sorted(str(path) for path in checkout.path.rglob("*") if ".git/" not in str(path))
    with pytest.raises(UpstreamError, match="not clean") as caught:
        apply.apply(pin, checkout)
    assert caught.value.exit_code == 5
    assert any(line.startswith(LEFT_OVERS[kind]) for line in caught.value.evidence)
    assert files == sorted(
        str(path) for path in checkout.path.rglob("*") if ".git/" not in str(path)
    )


def test_a_short_commit_id_finds_the_pin_here(pin: Pin) -> None:
    assert pins.load(pin.commit[:9]).tag == TAG
    assert pins.load(pin.commit).tag == TAG


def test_an_unknown_short_id_asks_for_the_full_one(pin: Pin) -> None:
    with pytest.raises(UsageError, match="no such pin: 0123456") as caught:
        pins.load("0123456")
    assert "full commit id" in caught.value.hint
    assert f"{TAG} = {pin.commit}" in caught.value.evidence


def test_dirty_checkout_of_someone_else_is_left_alone(pin: Pin, checkout: GitRepo) -> None:
    checkout.run("stash", "list")
    (checkout.path / "stray.cpp").write_text("mine")
    before = tree.inspect(pin, checkout)
    with pytest.raises(UpstreamError):
        apply.apply(pin, checkout)
    assert tree.inspect(pin, checkout) == before
