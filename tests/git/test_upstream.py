"""Getting the source: every kind of source, and what a failed attempt leaves behind."""

import errno
import shutil
import socket
import tarfile
import time
from pathlib import Path

import psutil
import pytest

from swapmoe import apply, index, paths, tree, upstream
from swapmoe.errors import UpstreamError, UsageError
from swapmoe.gitrepo import GitRepo, init
from swapmoe.pins import Pin
from tests.support.upstream import FILES, TAG, Mini, commit_all, write_files


def leftovers(tag: str = TAG) -> list[str]:
    folder = paths.source_dir(tag).parent
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock"))


def plain_folder(mini: Mini, tmp_path: Path) -> Path:
    folder = tmp_path / "plain folder"
    write_files(folder)
    return folder


@pytest.mark.parametrize("kind", ["clone", "bare", "archive", "folder", "foreign repository"])
def test_every_local_source_gives_the_pinned_tree(
    kind: str, mini: Mini, pin: Pin, tmp_path: Path
) -> None:
    source = {"clone": mini.clone, "archive": mini.archive}.get(kind)
    if kind == "bare":
        source = tmp_path / "bare.git"
        GitRepo(mini.clone).run("clone", "--quiet", "--bare", ".", source)
    elif source is None:
        source = plain_folder(mini, tmp_path)
        if kind == "foreign repository":
            commit_all(init(source), "same files, other commit")
    path = upstream.ensure_source(pin, str(source))
    repo = GitRepo(path)
    assert repo.tree_of(tree.PRISTINE_REF) == pin.manifest.upstream.tree
    assert tree.inspect(pin, repo).state == "clean"
    assert not tree.dirt(repo)
    assert (path / "docs/kept.log").read_text() == FILES["docs/kept.log"]
    receipt = paths.read_receipt(path)
    assert receipt is not None
    assert receipt["tree"] == pin.manifest.upstream.tree
    assert leftovers() == [TAG, f"{TAG}.receipt.json"]


def test_second_call_needs_no_source(mini: Mini, pin: Pin) -> None:
    path = upstream.ensure_source(pin)
    shutil.rmtree(mini.clone)
    assert upstream.ensure_source(pin) == path


def test_path_argument_names_a_local_source(mini: Mini, pin: Pin) -> None:
    assert upstream.ensure_source(pin, path=mini.archive).is_dir()


def test_dirty_clone_gives_its_commit_not_its_files(mini: Mini, pin: Pin) -> None:
    (mini.clone / "src/graph.cpp").write_text("uncommitted\n")
    path = upstream.ensure_source(pin, str(mini.clone))
    assert (path / "src/graph.cpp").read_text() == FILES["src/graph.cpp"]


def test_full_id_is_fetched_from_a_remote_and_the_tag_is_the_fallback(
    mini: Mini, pin: Pin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = pin.manifest.upstream
    repo = init(tmp_path / "by id")
    assert upstream.fetch_git(repo, mini.clone.as_uri(), facts) == pin.commit
    GitRepo(mini.clone).run("config", "uploadpack.hideRefs", "refs/heads")
    again = init(tmp_path / "by tag")
    assert upstream.fetch_git(again, mini.clone.as_uri(), facts) == pin.commit
    assert again.run("rev-list", "--count", "FETCH_HEAD").text == "1"


def test_moved_tag_is_said_and_the_recorded_commit_taken(
    mini: Mini, pin: Pin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    GitRepo(mini.clone).run("tag", "--force", TAG, "HEAD")
    repo = init(tmp_path / "repo")
    url = mini.clone.as_uri()
    assert upstream.fetch_git(repo, url, pin.manifest.upstream) == pin.commit
    assert f"taking the recorded {pin.commit}" in capsys.readouterr().err


def test_a_silent_server_is_given_up_soon_and_leaves_no_process(
    pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "_PROBE_SECONDS", 1.0)
    before = set(psutil.Process().children(recursive=True))
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        started = time.monotonic()
        with pytest.raises(UpstreamError) as caught:
            upstream.fetch_git(init(tmp_path / "repo"), url, pin.manifest.upstream)
    assert time.monotonic() - started < 20
    assert "no answer within 1 seconds" in caught.value.evidence
    assert set(psutil.Process().children(recursive=True)) <= before


def test_progress_is_reported_in_percent(mini: Mini, pin: Pin, tmp_path: Path) -> None:
    seen: list[int] = []
    fetch = ("fetch", "--progress", "--depth=1", "--", mini.clone.as_uri(), pin.commit)
    result = init(tmp_path / "repo").run(*fetch, on_percent=seen.append)
    assert result.code == 0
    assert seen[-1] == 100
    assert "Receiving" not in result.err


def test_unwritable_cache_is_named(
    mini: Mini, pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SWAPMOE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(UpstreamError, match="cannot work in") as caught:
        upstream.ensure_source(pin)
    assert "SWAPMOE_CACHE_DIR" in caught.value.hint


def test_remote_without_the_commit_says_so(pin: Pin, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_files(other)
    (other / "more").write_text("x")
    commit_all(init(other), "unrelated")
    with pytest.raises(UpstreamError, match="commit not found"):
        upstream.fetch_git(init(tmp_path / "repo"), other.as_uri(), pin.manifest.upstream)
    with pytest.raises(UpstreamError, match="does not have"):
        upstream.ensure_source(pin, str(other))
    assert leftovers() == []


def test_folder_with_another_content_is_refused_naming_files(
    mini: Mini, pin: Pin, tmp_path: Path
) -> None:
    folder = plain_folder(mini, tmp_path)
    (folder / "src/graph.cpp").write_text("other\n")
    with pytest.raises(UpstreamError, match="the source is not llama") as caught:
        upstream.ensure_source(pin, str(folder))
    assert caught.value.exit_code == 5
    assert caught.value.evidence[0].startswith("tree id ")
    assert caught.value.evidence[1].startswith("src/graph.cpp: blob ")
    assert leftovers() == []


def test_unknown_source_is_a_usage_error(pin: Pin) -> None:
    with pytest.raises(UsageError, match="no such source"):
        upstream.ensure_source(pin, "nowhere")


def test_archive_with_a_wrong_hash_is_not_unpacked(
    mini: Mini, pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    mini.archive.write_bytes(mini.archive.read_bytes() + b"x")
    monkeypatch.setattr(tarfile, "open", lambda *_a, **_k: pytest.fail("unpacked"))
    with pytest.raises(UpstreamError, match="not the recorded source archive") as caught:
        upstream.ensure_source(pin, str(mini.archive))
    assert f"recorded {pin.manifest.upstream.archive_sha256}" in caught.value.evidence
    assert leftovers() == []


def test_full_disk_while_unpacking_leaves_nothing(
    mini: Mini, pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.write_bytes
    count = iter(range(100))

    def full(path: Path, data: bytes) -> int:
        if next(count) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UpstreamError, match="cannot work in") as caught:
        upstream.ensure_source(pin, str(mini.archive))
    assert "No space left on device" in caught.value.evidence[0]
    assert caught.value.hint
    assert leftovers() == []


def test_an_interrupted_attempt_leaves_nothing_and_old_rests_are_removed(
    mini: Mini, pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = paths.source_dir(TAG).parent / f".{TAG}.killed"
    (rest / "deep").mkdir(parents=True)

    def stop(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(upstream, "_check", stop)
    with pytest.raises(KeyboardInterrupt):
        upstream.ensure_source(pin, str(mini.archive))
    assert leftovers() == []


def test_auto_takes_the_archive_when_git_fails_and_says_so_in_one_line(
    mini: Mini,
    pin: Pin,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SWAPMOE_SOURCE")

    def no_network(*_args: object) -> str:
        raise UpstreamError("git ls-remote failed", evidence=["Could not resolve host"])

    monkeypatch.setattr(upstream, "fetch_git", no_network)
    monkeypatch.setattr(index, "get_archive", lambda _name, _hash: mini.archive)
    upstream.ensure_source(pin)
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert notes == [
        "note: git is not usable here (Could not resolve host); taking the source archive instead"
    ]


def test_no_network_and_no_archive_names_both_and_the_way_out(
    pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWAPMOE_SOURCE")

    def fail(*_args: object) -> str:
        raise UpstreamError("not reachable", evidence=["no route"])

    monkeypatch.setattr(upstream, "fetch_git", fail)
    monkeypatch.setattr(index, "get_archive", fail)
    with pytest.raises(UpstreamError, match="no source for llama") as caught:
        upstream.ensure_source(pin)
    assert caught.value.exit_code == 5
    assert caught.value.evidence[:2] == ("git: no route", "archive: not reachable")
    assert "--source PATH" in caught.value.hint
    assert leftovers() == []


def test_damaged_checkout_is_named_and_force_mends_it_keeping_models(mini: Mini, pin: Pin) -> None:
    path = upstream.ensure_source(pin)
    shutil.rmtree(path / ".git")
    (path / "model.gguf").write_text("mine")
    (path / "src/graph.cpp").unlink()
    with pytest.raises(UpstreamError, match="damaged") as caught:
        upstream.ensure_source(pin)
    assert "--force" in caught.value.hint
    upstream.ensure_source(pin, force=True)
    assert (path / "model.gguf").read_text() == "mine"
    assert tree.inspect(pin, GitRepo(path)).state == "clean"
    assert apply.ensure_patched(pin).tree_id == pin.manifest.series.tree


def test_commit_whose_tree_differs_from_the_archive_is_accepted_and_said(
    mini: Mini, pin: Pin, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = pin.manifest.upstream.model_copy(update={"tree": "1" * 40})
    manifest = pin.manifest.model_copy(update={"upstream": facts})
    other = Pin(pin.tag, pin.build_number, pin.commit, pin.series_dir, manifest)
    upstream.ensure_source(other, str(mini.clone))
    assert "is not the archive's" in capsys.readouterr().err
    assert apply.ensure_patched(other).tree_id == pin.manifest.series.tree
    assert apply.ensure_patched(other).tree_id == pin.manifest.series.tree
