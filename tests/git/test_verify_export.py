"""Verify names what differs; export is one stable patch for plain git; refresh is repeatable."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from swapmoe import apply, pins, series
from swapmoe.errors import ApplyError, SeriesError
from swapmoe.gitrepo import GitRepo, init
from swapmoe.pins import Pin
from tests.support.upstream import OVERLAY, Mini, write_files


@pytest.mark.parametrize("path", [OVERLAY, "src/loader.cpp", "src/CMakeLists.txt"])
def test_one_changed_byte_in_a_touched_file_is_named(path: str, pin: Pin) -> None:
    file = apply.ensure_patched(pin).path / path
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ApplyError, match="not the recorded patched tree") as caught:
        apply.verify(pin, GitRepo(file.parents[path.count("/")]))
    assert caught.value.exit_code == 7
    assert f"{path}: changed" in caught.value.evidence
    assert "--force" in caught.value.hint


@pytest.mark.parametrize("change", ["other file", "untracked", "mode", "missing"])
def test_changes_outside_the_series_are_named(change: str, pin: Pin) -> None:
    top = apply.ensure_patched(pin).path
    path = {"untracked": "src/new.cpp", "mode": "src/models/one.cpp"}.get(change, "CMakeLists.txt")
    if change == "mode":
        (top / path).chmod(0o755)
    elif change == "missing":
        (top / path).unlink()
    else:
        (top / path).write_text("changed\n")
    with pytest.raises(ApplyError) as caught:
        apply.verify(pin, GitRepo(top))
    assert path in caught.value.evidence


def test_a_byte_changed_behind_gits_back_is_found(pin: Pin) -> None:
    file = apply.ensure_patched(pin).path / "CMakeLists.txt"
    times = file.stat()
    file.write_bytes(file.read_bytes().replace(b"llama", b"lLama"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ApplyError) as caught:
        apply.verify(pin, GitRepo(file.parent))
    assert "CMakeLists.txt" in caught.value.evidence


def test_ignored_build_output_does_not_matter(pin: Pin) -> None:
    top = apply.ensure_patched(pin).path
    (top / "build").mkdir()
    (top / "build/x.o").write_text("x")
    (top / "model.gguf").write_text("x")
    assert apply.verify(pin, GitRepo(top)).tree_id == pin.manifest.series.tree


def test_verify_leaves_the_repository_as_it_was(pin: Pin, checkout: GitRepo) -> None:
    apply.apply(pin, checkout)
    held = {path for path in checkout.path.rglob("*") if path.is_file()}
    index = (checkout.path / ".git/index").read_bytes()
    (checkout.path / "src/extra.cpp").write_text("x")
    with pytest.raises(ApplyError):
        apply.verify(pin, checkout)
    (checkout.path / "src/extra.cpp").unlink()
    apply.verify(pin, checkout)
    assert {path for path in checkout.path.rglob("*") if path.is_file()} == held
    assert (checkout.path / ".git/index").read_bytes() == index


def test_not_applied_is_said_with_the_command(pin: Pin, checkout: GitRepo) -> None:
    with pytest.raises(ApplyError, match="not applied") as caught:
        apply.verify(pin, checkout)
    assert caught.value.hint.startswith("swapmoe patch apply")


@pytest.mark.parametrize("name", [f"overlay/{OVERLAY}", "graph-observe-top-k.patch"])
def test_one_changed_byte_in_the_series_folder_is_named(name: str, mini: Mini, pin: Pin) -> None:
    apply.ensure_patched(pin)
    file = mini.series / name
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(SeriesError) as caught:
        apply.ensure_patched(pin)
    assert caught.value.exit_code == 6
    assert caught.value.evidence[0].startswith(f"{name}: sha256")


def test_missing_added_and_reordered_entries_are_named(mini: Mini, pin: Pin) -> None:
    overlay = mini.series / "overlay"
    (overlay / OVERLAY).rename(overlay / "src/other.cpp")
    with pytest.raises(SeriesError) as caught:
        apply.read_series(pin)
    assert caught.value.evidence == (
        f"overlay/{OVERLAY}: missing",
        "overlay/src/other.cpp: not in the manifest",
    )
    (overlay / "src/other.cpp").rename(overlay / OVERLAY)
    names = series.read_names(mini.series)
    (mini.series / "series").write_text("\n".join(reversed(names)) + "\n")
    with pytest.raises(SeriesError) as caught:
        apply.read_series(pin)
    assert caught.value.evidence == ("series: the order of the patches changed",)


def test_exported_patch_gives_the_recorded_tree_with_plain_git(
    mini: Mini, pin: Pin, checkout: GitRepo, tmp_path: Path
) -> None:
    file = tmp_path / "all.patch"
    file.write_bytes(apply.export(pin, checkout, "HEAD"))
    plain = tmp_path / "plain"
    write_files(plain)
    init(plain)
    for command in (["add", "-Af", "."], ["apply", "--index", str(file)]):
        subprocess.run(["git", *command], cwd=plain, check=True)
    tree = subprocess.run(["git", "write-tree"], cwd=plain, check=True, capture_output=True)
    assert tree.stdout.decode().strip() == pin.manifest.series.tree


def test_export_is_stable_and_has_full_ids(
    mini: Mini, pin: Pin, checkout: GitRepo, tmp_path: Path
) -> None:
    first = apply.export(pin, checkout, "HEAD")
    other = init(tmp_path / "other")
    other.run("fetch", "--quiet", mini.clone.as_uri(), pin.commit)
    other.run("checkout", "--quiet", "--detach", "FETCH_HEAD")
    assert apply.export(pin, other, "HEAD") == first
    text = first.decode()
    ids = re.findall(r"(?m)^index ([0-9a-f]+)\.\.([0-9a-f]+)", text)
    assert {len(blob) for pair in ids for blob in pair} == {40}
    assert "\n-- \n" not in text
    assert pin.manifest.series.tree in text
    assert text.count("diff --git ") == len(pin.manifest.file)


def test_manifest_is_written_the_same_twice_and_reads_back(
    mini: Mini, pin: Pin, checkout: GitRepo
) -> None:
    file = mini.series / "manifest.toml"
    before = file.read_bytes()
    file.unlink()
    manifest = apply.refresh(mini.series, pin.manifest.upstream, checkout, "HEAD")
    assert file.read_bytes() == before
    assert pins.read_manifest(mini.series) == manifest == pin.manifest


def test_manifest_records_blobs_and_patches(pin: Pin, checkout: GitRepo) -> None:
    files = {file.path: file for file in pin.manifest.file}
    loader = files["src/loader.cpp"]
    assert loader.before == checkout.blobs("HEAD", ["src/loader.cpp"])["src/loader.cpp"]
    assert loader.patches == ("loader-skip-experts.patch", "loader-free-state.patch")
    assert files[OVERLAY].before is None
    assert files[OVERLAY].patches == ()


def test_overlay_file_that_exists_upstream_is_refused(
    mini: Mini, pin: Pin, checkout: GitRepo
) -> None:
    shutil.copyfile(checkout.path / "src/graph.cpp", mini.series / "overlay/src/graph.cpp")
    with pytest.raises(ApplyError, match="exist upstream") as caught:
        apply.refresh(mini.series, pin.manifest.upstream, checkout, "HEAD")
    assert caught.value.evidence == ("src/graph.cpp",)
