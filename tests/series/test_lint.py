"""Every lint rule: one folder per mistake, generated from a series that passes."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from swapmoe import apply, lint, series
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin
from tests.support.upstream import OVERLAY, Mini, mail

GRAPH = "graph-observe-top-k.patch"
LOADER = "loader-skip-experts.patch"


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def write(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return change


def rename(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / old).rename(folder / new)
        edit("series", old, new)(folder)

    return change


def more_lines(count: int) -> Callable[[Path], None]:
    added = "+    ids = llama_expert_observe(ctx, ids);\n"

    def change(folder: Path) -> None:
        edit(GRAPH, added, added * count)(folder)
        edit(GRAPH, "@@ -3,5 +3,6 @@", f"@@ -3,5 +3,{5 + count} @@")(folder)

    return change


def removing(folder: Path) -> None:
    edit(GRAPH, "     return combine(ctx, ids);", "-    return combine(ctx, ids);")(folder)
    edit(GRAPH, "@@ -3,5 +3,6 @@", "@@ -3,5 +3,5 @@")(folder)


def new_patch(path: str, header: str) -> Callable[[Path], None]:
    diff = f"diff --git a/{path} b/{path}\n{header}"

    def change(folder: Path) -> None:
        text = mail("tests", "extra", f"Hook: {path}: one", diff)
        (folder / "tests-extra.patch").write_text(text)
        with (folder / "series").open("a") as file:
            file.write("tests-extra.patch\n")

    return change


def link(folder: Path) -> None:
    (folder / "overlay/src/link.cpp").symlink_to("llama-expert.cpp")


HUNK = (
    "--- a/{0}\n+++ b/{0}\n@@ -1,3 +1,4 @@ one\n int one() {{\n+    hook();\n     return 1;\n }}\n"
)
IDS = f"index {'1' * 40}..{'2' * 40} 100644\n"
ONE = "src/models/one.cpp"

MISTAKES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "P101 listed, not there": ("P101", write("series", f"{GRAPH}\ngone-away.patch\n")),
    "P101 no series file": ("P101", lambda folder: (folder / "series").unlink()),
    "P101 outside the folder": ("P101", edit("series", GRAPH, f"../{Path('x')}/{GRAPH}")),
    "P102 there, not listed": ("P102", write("graph-stray.patch", "x")),
    "P102 another file": ("P102", write("notes.orig", "x")),
    "P103 listed twice": ("P103", edit("series", GRAPH, f"{GRAPH}\n{GRAPH}")),
    "P104 numbered": ("P104", rename(GRAPH, "0001-observe-top-k.patch")),
    "P104 unknown area": ("P104", rename(GRAPH, "gpu-observe-top-k.patch")),
    "P105 no mbox line": ("P105", edit(GRAPH, f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n", "")),
    "P105 no author": ("P105", edit(GRAPH, "From: A. Author <author@example.org>\n", "")),
    "P105 no date": ("P105", edit(GRAPH, "Date: ", "X-Date: ")),
    "P106 other form": ("P106", edit(GRAPH, "swapmoe: graph: ", "graph: ")),
    "P106 other area": ("P106", edit(GRAPH, "swapmoe: graph: ", "swapmoe: loader: ")),
    "P107 too many lines": ("P107", more_lines(11)),
    "P107 removed line": ("P107", removing),
    "P108 no manifest": ("P108", lambda folder: (folder / "manifest.toml").unlink()),
    "P108 bad manifest": ("P108", edit("manifest.toml", "schema = 1", "schema = 2\nmore = 3")),
    "P108 overlay changed": ("P108", write(f"overlay/{OVERLAY}", "// other\n")),
    "P108 patch changed": ("P108", edit(GRAPH, "Upstream has", "Upstream still has")),
    "P109 hook outside the diff": ("P109", edit(GRAPH, "Hook: src/graph.cpp", "Hook: src/x.cpp")),
    "P109 other function": ("P109", edit(GRAPH, ": build_moe", ": build_ffn")),
    "P109 part of a name": ("P109", edit(GRAPH, ": build_moe", ": build_mo")),
    "P109 no function": ("P109", edit(GRAPH, "cpp: build_moe", "cpp")),
    "P110 model graph": ("P110", new_patch(ONE, IDS + HUNK.format(ONE))),
    "P110 overlay there": ("P110", write("overlay/src/models/two.cpp", "int two();\n")),
    "P111 tab": ("P111", write("overlay/src/a.cpp", "\tint a;\n")),
    "P111 CR": ("P111", lambda f: (f / "overlay/src/a.cpp").write_bytes(b"int a;\r\n") and None),
    "P111 comment": ("P111", write("overlay/src/a.cpp", "// naïve\n")),
    "P111 not text": ("P111", lambda f: (f / "overlay/a.bin").write_bytes(b"\xff\xfe") and None),
    "P111 no newline": ("P111", write("overlay/src/a.cpp", "int a;")),
    "P111 link": ("P111", link),
    "P112 patch on overlay": (
        "P112",
        new_patch(OVERLAY, IDS + HUNK.format(OVERLAY)),
    ),
    "P113 no diff": ("P113", write(GRAPH, "From x\n\nnothing\n")),
    "P113 rename": (
        "P113",
        new_patch("src/one.cpp", "similarity index 100%\nrename from src/a\nrename to src/b\n"),
    ),
    "P113 mode": ("P113", new_patch("convert.py", "old mode 100755\nnew mode 100644\n")),
    "P113 new file": ("P113", new_patch("src/new.cpp", f"new file mode 100644\n{IDS}")),
    "P113 binary": ("P113", new_patch("a.png", f"{IDS}GIT binary patch\nliteral 0\n")),
    "P113 short ids": (
        "P113",
        new_patch("src/a.cpp", "index 123..456\n" + HUNK.format("src/a.cpp")),
    ),
    "P113 no ids": ("P113", new_patch("src/a.cpp", HUNK.format("src/a.cpp"))),
    "P113 no prefix": (
        "P113",
        edit(GRAPH, "--- a/src/graph.cpp\n+++ b/", "--- src/graph.cpp\n+++ "),
    ),
    "P113 CRLF": (
        "P113",
        lambda f: (
            (f / GRAPH).write_bytes((f / GRAPH).read_bytes().replace(b"\n", b"\r\n")) and None
        ),
    ),
    "P113 signature": ("P113", edit(GRAPH, "\n }\n", "\n }\n-- \n2.39.5\n")),
    "P114 no body": (
        "P114",
        edit(
            GRAPH,
            "Upstream has no place to call us from. A callback there would let us drop it.",
            "",
        ),
    ),
    "P115 no Test": ("P115", edit(GRAPH, "Test: test-expert-stream\n", "")),
    "P115 empty trailer": ("P115", edit(GRAPH, "Test: test-expert-stream", "Test:")),
    "P115 unknown status": ("P115", edit(GRAPH, "Status: Inappropriate", "Status: Maybe")),
}


def rules(folder: Path, repo: GitRepo | None = None) -> list[str]:
    return [item.rule for item in lint.lint(folder, repo, "HEAD" if repo else None).findings]


def test_the_series_passes_and_hook_lines_are_counted(pin: Pin, checkout: GitRepo) -> None:
    report = lint.lint(pin.series_dir, checkout, "HEAD")
    assert report.findings == ()
    assert (report.added, report.removed) == (4, 0)
    assert report.hooks["src/loader.cpp"] == (2, 0)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found_under_its_rule(
    mistake: str, mini_template: Mini, tmp_path: Path
) -> None:
    rule, change = MISTAKES[mistake]
    folder = tmp_path / "series"
    shutil.copytree(mini_template.series, folder)
    change(folder)
    found = lint.lint(folder).findings
    assert rule in [item.rule for item in found], found
    assert all(item.where and item.text for item in found)


def test_rules_and_readme_agree() -> None:
    readme = Path(__file__).parents[2] / "patches/README.md"
    documented = set(re.findall(r"^\| (P\d+) ", readme.read_text(), re.MULTILINE))
    used = set(re.findall(r'"(P1\d\d)"', Path(lint.__file__).read_text()))
    assert documented == used
    assert used - {"P116"} <= {rule for rule, _ in MISTAKES.values()}


def test_a_reason_lifts_the_budget(mini_template: Mini, tmp_path: Path) -> None:
    folder = tmp_path / "series"
    shutil.copytree(mini_template.series, folder)
    more_lines(11)(folder)
    edit(GRAPH, "Test: ", "Hook-Budget: one line per tool\nTest: ")(folder)
    assert "P107" not in rules(folder)


def test_budget_adds_up_over_patches(mini_template: Mini, tmp_path: Path) -> None:
    folder = tmp_path / "series"
    shutil.copytree(mini_template.series, folder)
    for name, line in ((LOADER, "skip(path)"), ("loader-free-state.patch", "free()")):
        added = f"+    llama_expert_{line};\n"
        edit(name, added, added * 6)(folder)
        text = (folder / name).read_text()
        header = re.search(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@", text)
        assert header
        grown = f"@@ -{header[1]},{header[2]} +{header[3]},{int(header[4]) + 5} @@"
        (folder / name).write_text(text.replace(header[0], grown))
    assert "P107" in rules(folder)


def test_non_ascii_text_in_a_string_is_allowed(mini_template: Mini, tmp_path: Path) -> None:
    folder = tmp_path / "series"
    shutil.copytree(mini_template.series, folder)
    write("overlay/src/a.cpp", 'log("enabled \u2014 skipping");\n')(folder)
    assert "P111" not in rules(folder)


def test_a_patch_that_does_not_apply_is_p116(pin: Pin, checkout: GitRepo) -> None:
    edit(GRAPH, " tensor * build_moe(context", " tensor * build_moe(contexts")(pin.series_dir)
    facts = pin.manifest
    found = series.read(pin.series_dir)
    patches = [
        entry.model_copy(update={"sha256": patch.sha256})
        for entry, patch in zip(facts.patch, found.patches, strict=True)
    ]
    digest = facts.series.model_copy(update={"digest": found.digest})
    forged = facts.model_copy(update={"patch": tuple(patches), "series": digest})
    apply.pins.write_manifest(pin.series_dir, forged)
    assert rules(pin.series_dir, checkout) == ["P116"]


def test_an_overlay_file_that_exists_upstream_is_p112(pin: Pin, checkout: GitRepo) -> None:
    write("overlay/src/loader.cpp", "int x;\n")(pin.series_dir)
    assert "P112" in rules(pin.series_dir)


@pytest.mark.parametrize("what", ["tree", "before", "after"])
def test_a_forged_id_is_p108(what: str, pin: Pin, checkout: GitRepo) -> None:
    last = pin.manifest.file[-1]
    real = {"tree": pin.manifest.series.tree, "before": last.before, "after": last.after}[what]
    assert real
    edit("manifest.toml", real, real[::-1])(pin.series_dir)
    assert rules(pin.series_dir) == []
    assert rules(pin.series_dir, checkout) == ["P108"]
