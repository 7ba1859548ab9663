"""Each shipped series on the real llama.cpp source; needs SWAPMOE_UPSTREAM=auto|PATH."""

import os
import subprocess
from pathlib import Path

import pytest

from swapmoe import apply, lint, pins, port_prove, tree, upstream
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin

SOURCE = os.environ.get("SWAPMOE_UPSTREAM")

pytestmark = [
    pytest.mark.upstream,
    pytest.mark.skipif(not SOURCE, reason="SWAPMOE_UPSTREAM is not set"),
]


@pytest.fixture(scope="module", params=pins.known_tags())
def pin(request: pytest.FixtureRequest) -> Pin:
    return pins.load(request.param)


@pytest.fixture(scope="module")
def checkout(pin: Pin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the pin; SWAPMOE_UPSTREAM is a source of the default pin only."""
    source = str(SOURCE) if pin.tag == pins.default_tag() else "auto"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SWAPMOE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return upstream.ensure_source(pin, source)


def test_source_is_the_recorded_one(pin: Pin, checkout: Path) -> None:
    repo = GitRepo(checkout)
    assert repo.tree_of(tree.PRISTINE_REF) == pin.manifest.upstream.tree
    assert tree.inspect(pin, repo).state == "clean"


def test_series_passes_every_rule_within_the_budget(pin: Pin, checkout: Path) -> None:
    report = lint.lint(pin.series_dir, GitRepo(checkout), tree.PRISTINE_REF)
    assert report.findings == ()
    assert report.added <= 80
    assert report.removed == 0


def test_git_am_and_git_apply_give_the_recorded_tree(pin: Pin, checkout: Path) -> None:
    port_prove.prove(pin, GitRepo(checkout), tree.PRISTINE_REF)


def test_export_is_the_same_everywhere(
    pin: Pin, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = apply.export(pin, GitRepo(checkout), tree.PRISTINE_REF)
    settings = "[diff]\n\tnoprefix = true\n\tcontext = 9\n[core]\n\tabbrev = 7\n\tautocrlf = true\n"
    (tmp_path / "gitconfig").write_text(settings)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_DIFF_OPTS", "-u9")
    clone = tmp_path / "clone"
    refs = f"+{tree.PRISTINE_REF}:{tree.PRISTINE_REF}"
    for words in (["init", "-q", clone], ["-C", clone, "fetch", "-q", checkout.as_uri(), refs]):
        subprocess.run(["git", *words], check=True)
    assert apply.export(pin, GitRepo(clone), tree.PRISTINE_REF) == first


def test_apply_verify_and_one_changed_byte(pin: Pin, checkout: Path) -> None:
    repo = GitRepo(checkout)
    apply.apply(pin, repo, own=True)
    assert apply.verify(pin, repo).tree_id == pin.manifest.series.tree
    assert apply.apply(pin, repo, own=True).state == "applied"
    file = checkout / next(entry.path for entry in pin.manifest.file if entry.before is None)
    whole = file.read_bytes()
    file.write_bytes(whole + b"\n")
    with pytest.raises(apply.ApplyError, match="not the recorded patched tree"):
        apply.verify(pin, repo)
    file.write_bytes(whole)
    apply.verify(pin, repo)
