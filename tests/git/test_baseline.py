"""The unpatched build: pristine source, the patched build's options, its own folder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swapmoe import amx, baseline, gitrepo, upstream
from swapmoe.build import BuildOptions, ensure_built
from swapmoe.pins import Pin
from swapmoe.tree import PRISTINE_REF
from tests.support.building import Workshop, make_tree
from tests.support.upstream import commit_all


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path, monkeypatch)
    made.cpu("avx2", "fma")
    checkout = make_tree(tmp_path / "checkout")
    repo = gitrepo.init(checkout)
    repo.run("update-ref", PRISTINE_REF, commit_all(repo, "as it came"))
    (checkout / "CMakeLists.txt").write_text("patched\n")
    commit_all(repo, "patched")

    def ensure_source(_pin: Pin) -> Path:
        return checkout

    monkeypatch.setattr(upstream, "ensure_source", ensure_source)
    return made


@pytest.mark.parametrize("verdict", [amx.ABSENT, amx.DISABLED])
def test_builds_the_pristine_source_with_the_same_flags(shop: Workshop, verdict: str) -> None:
    patched = replace(ensure_built(shop.pin, BuildOptions()), amx=verdict)
    bin_dir = baseline.build_unpatched(shop.pin, patched)
    source = bin_dir.parents[1] / "source"
    assert (source / "CMakeLists.txt").read_text() != "patched\n"
    assert not (source / ".git").exists()
    passed = json.loads((bin_dir.parent / "definitions.json").read_text())
    assert passed["GGML_NATIVE"] == "ON"
    assert passed["CMAKE_BUILD_TYPE"] == "Release"
    without_amx = "-mno-amx-tile" in passed["CMAKE_CXX_FLAGS"]
    assert without_amx == (verdict == amx.DISABLED)
    *_, compile_call = shop.tools.calls("cmake")
    assert compile_call[-len(baseline.TARGETS) :] == list(baseline.TARGETS)
    assert bin_dir != patched.bin_dir
