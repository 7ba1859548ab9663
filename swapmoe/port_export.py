"""Commits of a port written as a series folder, in the one form ``patch lint`` accepts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swapmoe import series
from swapmoe.errors import SeriesError
from swapmoe.gitrepo import GitRepo

_SUBJECT = re.compile(r"swapmoe: ([a-z]+): (\S.*)")
_FORMAT = (
    "--no-signature", "--zero-commit", "--full-index", "--no-stat", "--no-renames",
    "--no-numbered", "--subject-prefix=", "--no-ext-diff", "--no-textconv", "--no-attach",
    "--no-thread", "--no-cover-letter", "--src-prefix=a/", "--dst-prefix=b/", "-U3",
)  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """A patch file to write."""

    name: str
    data: bytes


def export(
    repo: GitRepo, base: str, head: str, known: Mapping[str, str]
) -> tuple[tuple[Exported, ...], dict[str, str]]:
    """The patches between two commits, and the blob of each file that ``base`` does not have.

    Those files are the overlay and are left out of the patches; a commit that changes nothing
    else gives no patch. ``known`` maps subjects to file names that are to be kept.
    Raises SeriesError for a subject that gives no name, or the same name twice.
    """
    added = repo.run("diff-tree", "-r", "-z", "--name-only", "--diff-filter=A", base, head).items
    overlay = repo.blobs(head, added)
    commits = repo.run("rev-list", "--reverse", f"{base}..{head}").text.splitlines()
    patches: list[Exported] = []
    for commit in commits:
        touched = repo.run(
            "diff-tree", "-r", "-z", "--name-only", "--no-commit-id", f"{commit}^", commit
        ).items
        wanted = [path for path in touched if path not in overlay and repo.blobs(base, [path])]
        if wanted:
            mail = repo.run(
                "format-patch", "-1", "--stdout", *_FORMAT, commit, "--", *wanted
            ).out  # fmt: skip
            subject = repo.run("log", "-1", "--format=%s", commit).text
            patches.append(Exported(known.get(subject) or _name(subject), mail))
    names = [patch.name for patch in patches]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SeriesError("several commits would be the same patch", evidence=twice)
    return tuple(patches), overlay


def write(folder: Path, patches: tuple[Exported, ...], overlay: str) -> None:
    """Write patches, ``series`` and the ``overlay`` file that names the shared overlay."""
    folder.mkdir(parents=True)
    for patch in patches:
        (folder / patch.name).write_bytes(patch.data)
    names = "".join(f"{patch.name}\n" for patch in patches)
    (folder / series.SERIES).write_text(names, encoding="utf-8", newline="\n")
    (folder / series.OVERLAY).write_text(f"{overlay}\n", encoding="utf-8", newline="\n")


def _name(subject: str) -> str:
    found = _SUBJECT.fullmatch(subject)
    if not found:
        raise SeriesError(
            f"no patch name can be made of the subject {subject!r}",
            evidence=["expected: swapmoe: <area>: <what>"],
            hint="git commit --amend in the port's work tree, or git rebase -i to squash it",
        )
    what = re.sub(r"[^a-z0-9]+", "-", found[2].lower()).strip("-")
    return f"{found[1]}-{what}.patch"
