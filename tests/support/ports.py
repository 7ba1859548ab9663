"""Later upstreams for the mini-upstream: each is a commit with a build tag."""

from collections.abc import Callable
from pathlib import Path

from swapmoe.gitrepo import GitRepo
from tests.support.upstream import TAG, Mini, commit_all

LATER = "b20"

Change = Callable[[Path], None]


def later(mini: Mini, change: Change, tag: str = LATER) -> str:
    """Commit ``change`` on top of the pin in the mini-upstream and tag it; return the commit."""
    repo = GitRepo(mini.clone)
    repo.run("checkout", "--quiet", "--force", "--detach", TAG)
    change(mini.clone)
    commit = commit_all(repo, f"later: {tag}")
    repo.run("tag", "--force", tag)
    repo.run("checkout", "--quiet", "main")
    return commit


def replace(name: str, old: str, new: str) -> Change:
    """A change of one file: the one place that reads ``old`` becomes ``new``."""

    def change(top: Path) -> None:
        file = top / name
        text = file.read_bytes().decode()
        assert text.count(old) == 1
        file.write_bytes(text.replace(old, new).encode())

    return change


def write(name: str, text: str) -> Change:
    """A change that writes a whole file."""

    def change(top: Path) -> None:
        file = top / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())

    return change


def both(*changes: Change) -> Change:
    """Several changes in order."""

    def change(top: Path) -> None:
        for one in changes:
            one(top)

    return change
