"""Reading diffs and patch mails."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapmoe import diffs, series
from swapmoe.errors import SeriesError

HUNK = "@@ -1,2 +1,3 @@ void f()\n a\n+b\n c\n"
IDS = f"index {'1' * 40}..{'2' * 40} 100644\n"


def one(text: str) -> diffs.FileChange:
    (change,) = diffs.parse(text)
    return change


def test_a_modified_file() -> None:
    change = one(
        f"diff --git a/src/x.cpp b/src/x.cpp\n{IDS}--- a/src/x.cpp\n+++ b/src/x.cpp\n{HUNK}"
    )
    assert (change.path, change.old_path, change.kind) == ("src/x.cpp", "src/x.cpp", "modify")
    assert (change.added, change.removed) == (1, 0)
    assert change.blob_ids == ("1" * 40, "2" * 40)
    (hunk,) = change.hunks
    assert (hunk.function, hunk.context, hunk.added) == ("void f()", ("a", "c"), ("b",))


@pytest.mark.parametrize(
    ("quoted", "path"),
    [
        ("a/plain", "a/plain"),
        ('"na\\303\\257ve.txt"', "naïve.txt"),
        ('"tab\\there \\"q\\" back\\\\"', 'tab\there "q" back\\'),
        ('"naïve"', "naïve"),
    ],
)
def test_quoted_names(quoted: str, path: str) -> None:
    assert diffs.unquote(quoted) == path


def test_mnemonic_prefixes_are_understood() -> None:
    change = one(f"diff --git i/x w/x\n{IDS}--- i/x\n+++ w/x\n{HUNK}")
    assert (change.path, change.old_path) == ("x", "x")


def test_missing_prefixes_are_refused_with_the_reason() -> None:
    with pytest.raises(SeriesError) as caught:
        diffs.parse(f"diff --git dir s/x dir s/x\n{IDS}--- dir s/x\n+++ dir s/x\n{HUNK}")
    assert "has no a/ or b/ prefix" in caught.value.evidence[1]
    with pytest.raises(SeriesError):
        diffs.parse("diff --git x y\nold mode 100644\nnew mode 100755\n")


def test_text_without_a_diff_and_broken_hunks_are_refused() -> None:
    with pytest.raises(SeriesError, match="no git diff"):
        diffs.parse("hello\n")
    with pytest.raises(SeriesError, match="not understood"):
        diffs.parse(f"diff --git a/x b/x\n{IDS}--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n a\n")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_any_name_survives_quoting(name: str) -> None:
    quoted = "".join(
        f"\\{byte:03o}" if byte < 32 or byte > 126 or byte in b'"\\' else chr(byte)
        for byte in name.encode()
    )
    assert diffs.unquote(f'"{quoted}"') == name


MAIL = f"""From {"0" * 40} Mon Sep 17 00:00:00 2001
From: =?UTF-8?q?J=C3=BCrgen?= <j@example.org>
Date: Sat, 28 Nov 2026 10:00:00 +0100
Subject: [PATCH 1/2] swapmoe: graph: observe what a very
 long subject says

First paragraph: not a trailer.

Second.

Hook: src/x.cpp: f
Hook: src/x.cpp: g and
 more
Test: t
---
 x | 1 +

diff --git a/src/x.cpp b/src/x.cpp
{IDS}--- a/src/x.cpp
+++ b/src/x.cpp
{HUNK}"""


def test_mail_header_body_and_trailers() -> None:
    patch = series.Patch("x.patch", MAIL.encode())
    assert patch.author == ("Jürgen", "j@example.org")
    assert patch.subject == "swapmoe: graph: observe what a very long subject says"
    assert patch.body.startswith("First paragraph")
    assert patch.body.endswith("Test: t")
    assert patch.trailer("Hook") == ["src/x.cpp: f", "src/x.cpp: g and more"]
    assert patch.trailer("Test") == ["t"]
    assert patch.message.startswith(patch.subject + "\n\nFirst")
    assert patch.diff.startswith("diff --git")
    assert patch.changes[0].path == "src/x.cpp"


def test_a_last_paragraph_of_prose_is_no_trailer() -> None:
    patch = series.Patch("x.patch", MAIL.replace("Test: t\n", "Test: t\nand prose\n").encode())
    assert patch.trailers == ()


def test_digest_depends_on_names_order_and_every_byte(tmp_path: Path) -> None:
    (tmp_path / "overlay/src").mkdir(parents=True)
    (tmp_path / "overlay/src/a.cpp").write_text("a")
    (tmp_path / "x.patch").write_text(MAIL)
    (tmp_path / "y.patch").write_text(MAIL)
    (tmp_path / "series").write_text("# comment\n\nx.patch\ny.patch\n")
    found = [series.read(tmp_path)]
    (tmp_path / "series").write_text("y.patch\nx.patch\n")
    found.append(series.read(tmp_path))
    (tmp_path / "overlay/src/a.cpp").rename(tmp_path / "overlay/src/b.cpp")
    found.append(series.read(tmp_path))
    (tmp_path / "overlay/src/b.cpp").write_text("b")
    found.append(series.read(tmp_path))
    assert len({item.digest for item in found}) == 4
    assert found[0].patches_of("src/x.cpp") == ("x.patch", "y.patch")


def test_crlf_is_undone_only_for_a_converted_patch(tmp_path: Path) -> None:
    file = tmp_path / "x.patch"
    file.write_bytes(MAIL.replace("\n", "\r\n").encode())
    patch = series.read_patch(file)
    assert patch.had_crlf
    assert patch.data == MAIL.encode()
    file.write_bytes(MAIL.replace("+b\n", "+b\r\n").encode())
    patch = series.read_patch(file)
    assert not patch.had_crlf
    assert b"+b\r\n" in patch.data


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SeriesError, match="series"):
        series.read(tmp_path)
    (tmp_path / "series").write_text("gone-x.patch\n")
    with pytest.raises(SeriesError, match=r"gone-x\.patch"):
        series.read(tmp_path)
