"""What we read out of diffs against what git says about them (case C07)."""

import pytest

from swapmoe import diffs
from swapmoe.errors import SeriesError
from swapmoe.gitrepo import GitRepo, init
from tests.support.upstream import commit_all

PLAIN = ("-c", "core.quotePath=false")
QUOTED = ("-c", "core.quotePath=true")
MNEMONIC = ("-c", "diff.mnemonicPrefix=true")
NO_PREFIX = ("-c", "diff.noprefix=true")


@pytest.fixture
def changed(tmp_path) -> GitRepo:  # type: ignore[no-untyped-def]
    repo = init(tmp_path / "repo")
    top = repo.path
    (top / "dir space").mkdir()
    for name in ("dir space/f g.txt", "naïve.txt", "old.txt", "mode.sh", "gone.txt", "source.txt"):
        (top / name).write_text("".join(f"{name} {i}\n" for i in range(20)))
    commit_all(repo, "before")
    (top / "dir space/f g.txt").write_text("one\n")
    text = (top / "naïve.txt").read_text()
    (top / "naïve.txt").write_text(text.replace("5\n", "5\nmore\n"))
    (top / "old.txt").rename(top / "new name.txt")
    (top / "mode.sh").chmod(0o755)
    (top / "gone.txt").unlink()
    (top / "empty.txt").touch()
    (top / "copy.txt").write_text((top / "source.txt").read_text() + "more\n")
    (top / "source.txt").write_text((top / "source.txt").read_text() + "changed\n")
    repo.run("add", "--all")
    return repo


def diff(repo: GitRepo, settings: tuple[str, ...]) -> str:
    options = ("--cached", "--find-copies", "--full-index")
    return repo.run(*settings, "-c", "diff.renames=copies", "diff", *options).out.decode()


@pytest.mark.parametrize("settings", [PLAIN, QUOTED, MNEMONIC])
def test_paths_kinds_and_counts_equal_git(changed: GitRepo, settings: tuple[str, ...]) -> None:
    text = diff(changed, settings)
    found = {change.path: change for change in diffs.parse(text)}
    assert {path: change.kind for path, change in found.items()} == {
        "copy.txt": "copy",
        "dir space/f g.txt": "modify",
        "empty.txt": "add",
        "gone.txt": "delete",
        "mode.sh": "mode",
        "naïve.txt": "modify",
        "new name.txt": "rename",
        "source.txt": "modify",
    }
    assert found["new name.txt"].old_path == "old.txt"
    assert found["copy.txt"].old_path == "source.txt"
    numstat = changed.run("apply", "--numstat", "-z", "-", stdin=text.encode()).items
    counts = {}
    for line in numstat:
        added, removed, path = line.split("\t")
        counts[path] = (int(added), int(removed))
    assert {path: (c.added, c.removed) for path, c in found.items()} == counts


def test_a_diff_without_prefixes_is_refused(changed: GitRepo) -> None:
    with pytest.raises(SeriesError) as caught:
        diffs.parse(diff(changed, NO_PREFIX))
    assert "diff.noprefix=false" in caught.value.evidence[1]
