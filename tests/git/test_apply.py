"""The four states of a checkout, and apply that changes everything or nothing (case C05)."""

import shutil
from pathlib import Path

import pytest

from swapmoe import apply, compose, series, tree
from swapmoe.errors import ApplyError, SeriesError, UpstreamError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin
from tests.support.upstream import EDITS, OVERLAY, Mini


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a folder except git's own logs of what was read."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def by_hand(repo: GitRepo, patch: Path) -> None:
    repo.run("apply", "-", stdin=patch.read_bytes())


def test_clean_then_applied(pin: Pin, checkout: GitRepo) -> None:
    assert tree.inspect(pin, checkout).state == "clean"
    before = apply.apply(pin, checkout)
    assert before.state == "clean"
    after = tree.inspect(pin, checkout)
    assert after.state == "applied"
    assert set(after.files.values()) == {"after"}
    assert not after.problems
    assert checkout.tree_of("HEAD") == pin.manifest.series.tree
    assert checkout.run("symbolic-ref", "HEAD").text == "refs/heads/work"


def test_applying_again_changes_nothing(pin: Pin, checkout: GitRepo) -> None:
    apply.apply(pin, checkout)
    held = snapshot(checkout.path)
    assert apply.apply(pin, checkout).state == "applied"
    assert snapshot(checkout.path) == held


def test_partial_names_files_and_changes_nothing(pin: Pin, checkout: GitRepo) -> None:
    by_hand(checkout, pin.series_dir / "graph-observe-top-k.patch")
    status = tree.inspect(pin, checkout)
    assert status.state == "partial"
    assert status.files["src/graph.cpp"] == "after"
    assert status.files["src/loader.cpp"] == "before"
    held = snapshot(checkout.path)
    with pytest.raises(ApplyError, match="only part") as caught:
        apply.apply(pin, checkout)
    assert "src/graph.cpp: after" in caught.value.evidence
    assert snapshot(checkout.path) == held


def test_one_of_two_patches_on_a_file_is_a_conflict(pin: Pin, checkout: GitRepo) -> None:
    by_hand(checkout, pin.series_dir / "loader-skip-experts.patch")
    assert tree.inspect(pin, checkout).files["src/loader.cpp"] == "changed"
    with pytest.raises(ApplyError, match="conflicts"):
        apply.apply(pin, checkout)


def test_conflict_names_the_file_and_changes_nothing(pin: Pin, checkout: GitRepo) -> None:
    (checkout.path / "src/graph.cpp").write_text("something else\n")
    held = snapshot(checkout.path)
    with pytest.raises(ApplyError, match="conflicts") as caught:
        apply.apply(pin, checkout)
    assert "src/graph.cpp: changed" in caught.value.evidence
    assert "modified: src/graph.cpp" in caught.value.evidence
    assert snapshot(checkout.path) == held


def test_a_patch_that_does_not_apply_is_named_and_nothing_changes(
    pin: Pin, checkout: GitRepo
) -> None:
    patch = pin.series_dir / "graph-observe-top-k.patch"
    patch.write_text(patch.read_text().replace(" tensor * build_moe", " tensor * build_other"))
    with pytest.raises(SeriesError, match="not the one its manifest") as folder:
        apply.apply(pin, checkout)
    assert any(line.startswith(patch.name) for line in folder.value.evidence)
    found = series.read(pin.series_dir)
    held = snapshot(checkout.path)
    with pytest.raises(ApplyError, match=patch.name) as caught, checkout.scratch() as scratch:
        compose.compose(scratch, "HEAD", found)
    assert "src/graph.cpp: patch does not apply" in caught.value.evidence
    assert snapshot(checkout.path) == held


def test_look_alike_blocks_are_told_apart(pin: Pin, checkout: GitRepo) -> None:
    apply.apply(pin, checkout)
    text = (checkout.path / "src/loader.cpp").read_text()
    opened, reopened = text.split("loader::reopen", 1)
    assert "llama_expert_skip" not in opened
    assert "llama_expert_skip" in reopened


def test_same_tree_commits_and_messages_as_git_am(
    pin: Pin, checkout: GitRepo, tmp_path: Path
) -> None:
    apply.apply(pin, checkout)
    composed = checkout.run("log", "--format=%an|%ae|%at|%s|%b|%T", f"-n{len(EDITS)}").text
    checkout.run("checkout", "--quiet", "-b", "am", pin.commit)
    target = checkout.path / OVERLAY
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(pin.series_dir / "overlay" / OVERLAY, target)
    checkout.run("add", "--", OVERLAY)
    checkout.run("commit", "--quiet", "-m", "overlay")
    names = series.read_names(pin.series_dir)
    checkout.run("am", "--quiet", *(pin.series_dir / name for name in names))
    assert checkout.run("log", "--format=%an|%ae|%at|%s|%b|%T", f"-n{len(EDITS)}").text == composed
    assert checkout.tree_of("HEAD") == pin.manifest.series.tree


def test_applied_by_hand_counts_as_applied(pin: Pin, checkout: GitRepo) -> None:
    checkout.run("apply", "-", stdin=apply.export(pin, checkout, "HEAD"))
    assert tree.inspect(pin, checkout).state == "applied"
    assert apply.verify(pin, checkout).tree_id == pin.manifest.series.tree


def test_own_checkout_follows_a_changed_series(pin: Pin, mini: Mini) -> None:
    first = apply.ensure_patched(pin)
    repo = GitRepo(first.path)
    untouched = first.path / "src/graph.cpp"
    stamp = untouched.stat().st_mtime_ns
    overlay = mini.series / "overlay" / OVERLAY
    overlay.write_text(overlay.read_text() + "void more() {}\n")
    manifest = apply.refresh(mini.series, pin.manifest.upstream, repo, tree.PRISTINE_REF)
    changed = Pin(pin.tag, pin.build_number, pin.commit, pin.series_dir, manifest)
    assert tree.inspect(changed, repo).state == "outdated"
    second = apply.ensure_patched(changed)
    assert second.tree_id == manifest.series.tree != first.tree_id
    assert untouched.stat().st_mtime_ns == stamp
    assert tree.inspect(changed, repo).state == "applied"


def test_own_checkout_drops_an_overlay_file_that_is_gone(pin: Pin, mini: Mini) -> None:
    repo = GitRepo(apply.ensure_patched(pin).path)
    (mini.series / "overlay" / OVERLAY).rename(mini.series / "overlay/src/renamed.cpp")
    manifest = apply.refresh(mini.series, pin.manifest.upstream, repo, tree.PRISTINE_REF)
    changed = Pin(pin.tag, pin.build_number, pin.commit, pin.series_dir, manifest)
    apply.ensure_patched(changed)
    assert not (repo.path / OVERLAY).exists()
    assert (repo.path / "src/renamed.cpp").exists()


def test_force_resets_only_the_own_checkout_and_keeps_models_and_builds(pin: Pin) -> None:
    path = apply.ensure_patched(pin).path
    kept = [path / "build" / "x.o", path / "big.gguf", path / "build-debug" / "y"]
    for file in kept:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    (path / "src/graph.cpp").write_text("broken\n")
    (path / "stray.cpp").write_text("stray\n")
    with pytest.raises(ApplyError):
        apply.ensure_patched(pin)
    assert (path / "stray.cpp").exists()
    apply.apply(pin, GitRepo(path), own=True, force=True)
    assert all(file.read_text() == "mine" for file in kept)
    assert not (path / "stray.cpp").exists()
    assert apply.verify(pin, GitRepo(path)).tree_id == pin.manifest.series.tree


def test_same_commit_from_every_source(
    pin: Pin, mini: Mini, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(mini.clone, folder)
    shutil.rmtree(folder / ".git")
    (folder / "CMakeLists.txt").write_text("project(llama)\nadd_subdirectory(src)\n")
    found = set()
    for number, source in enumerate((mini.archive, folder)):
        monkeypatch.setenv("SWAPMOE_CACHE_DIR", str(tmp_path / f"cache{number}"))
        done = apply.ensure_patched(pin, str(source))
        found.add((done.tree_id, done.commit))
    assert len(found) == 1
    assert found.pop()[0] == pin.manifest.series.tree


def test_a_failing_checkout_step_is_taken_back(
    pin: Pin, checkout: GitRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = checkout.rev("HEAD")
    real = GitRepo.run

    def run(self: GitRepo, *args: str, **options: object) -> object:
        if args[0] == "merge":
            (self.path / "src/graph.cpp").write_text("half written")
            (self.path / OVERLAY).write_text("half written")
            raise UpstreamError("no space left on device") from None
        return real(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(GitRepo, "run", run)
    with pytest.raises(UpstreamError, match="no space"):
        apply.apply(pin, checkout)
    monkeypatch.undo()
    assert checkout.rev("HEAD") == head
    assert not tree.dirt(checkout)
