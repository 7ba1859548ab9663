"""A pin, a small source tree and fake tools: a build in milliseconds."""

import sys
import tempfile
from pathlib import Path

import pytest

from swapmoe import apply
from swapmoe.pins import Manifest, Pin, SeriesFacts, Upstream
from tests.support.fake_tools import FakeTools

COMMIT = "221f0f6356efe2260023208365705ec5d5a7c8f5"

CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.14...3.28)
option(LLAMA_BUILD_UI "ui" ON)
option(LLAMA_USE_PREBUILT_UI "prebuilt" ON)
option(LLAMA_BUILD_EXAMPLES "examples" ON)
option(LLAMA_BUILD_TESTS "tests" ON)
option(LLAMA_OPENSSL "tls" ON)
option(LLAMA_SANITIZE_THREAD "tsan" OFF)
if (NOT DEFINED LLAMA_BUILD_NUMBER)
endif()
if (NOT DEFINED LLAMA_BUILD_COMMIT)
endif()
"""


def make_pin(folder: Path, tree: str = "a" * 40) -> Pin:
    """The release pin with an invented series."""
    manifest = Manifest(
        upstream=Upstream(
            tag="b10235", commit=COMMIT, archive="x-10235.0.0.tar.gz", archive_sha256="0" * 64
        ),
        series=SeriesFacts(digest=f"sha256:{'1' * 64}", tree=tree),
    )
    return Pin("b10235", 10235, COMMIT, folder, manifest)


def make_tree(folder: Path) -> Path:
    """CMake files with the options of the pin."""
    (folder / "ggml").mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text(CMAKE_LISTS)
    (folder / "ggml" / "CMakeLists.txt").write_text('option(GGML_NATIVE "native" ON)\n')
    return folder


class Workshop:
    """Everything a build needs, fake, under one folder with a difficult name."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root / "dir with space" / "naïve 模型"
        self.monkeypatch = monkeypatch
        self.tools = FakeTools(self.root / "tools")
        self.source = make_tree(self.root / "source")
        self.cache = self.root / "cache"
        monkeypatch.setenv("SWAPMOE_CACHE_DIR", str(self.cache))
        monkeypatch.setenv("PATH", f"{self.tools.folder}:/usr/bin:/bin")
        for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS"):
            monkeypatch.delenv(name, raising=False)
        (self.root / "tmp").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(self.root / "tmp"))
        self.tree_id = "a" * 40
        self.pin = make_pin(self.root, self.tree_id)
        monkeypatch.setattr(apply, "ensure_patched", self._ensure_patched)

    def _ensure_patched(self, pin: Pin, source: str = "auto") -> apply.PatchedTree:
        return apply.PatchedTree(self.source, self.tree_id, "c" * 40)

    def only_tools(self) -> None:
        """Take the system's programs off PATH, and wheels from beside this Python."""
        empty = self.root / "no wheels"
        empty.mkdir(exist_ok=True)
        self.monkeypatch.setenv("PATH", str(self.tools.folder))
        self.monkeypatch.setattr(sys, "executable", str(empty / "python"))

    def cpu(self, *flags: str) -> None:
        """Pretend to be a CPU with these flags."""
        for module in ("toolchain", "amx"):
            self.monkeypatch.setattr(f"swapmoe.{module}.cpu_flags", lambda: tuple(sorted(flags)))
