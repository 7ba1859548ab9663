"""The proof from nothing: it holds for a right series and names what is wrong with another."""

import pytest

from swapmoe import apply, pins, port_prove
from swapmoe.errors import ApplyError, SeriesError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin


def test_a_right_series_is_proven_and_nothing_changes(pin: Pin, checkout: GitRepo) -> None:
    before = checkout.run("for-each-ref").text
    port_prove.prove(pin, checkout, "HEAD")
    assert checkout.run("for-each-ref").text == before
    assert checkout.run("status", "--porcelain").text == ""


def test_another_tree_than_the_recorded_one_is_named(
    pin: Pin, checkout: GitRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = apply.export(pin, checkout, "HEAD")
    other = exported.replace(b"llama_expert_free();", b"llama_expert_null();")
    monkeypatch.setattr(apply, "export", lambda *_: other)
    with pytest.raises(ApplyError, match="git apply of the exported patch") as caught:
        port_prove.prove(pin, checkout, "HEAD")
    assert pin.manifest.series.tree in caught.value.evidence[0]


def test_a_changed_series_is_refused(pin: Pin, checkout: GitRepo) -> None:
    (pin.series_dir / "series").write_text("graph-observe-top-k.patch\n")
    with pytest.raises(SeriesError, match="not the one its manifest describes"):
        port_prove.prove(pins.load(), checkout, "HEAD")
