"""Looking at a checkout: which files of the series are in it, and what else is in the way."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Manifest, Pin

PRISTINE_REF = "refs/swapmoe/pristine"
PATCHED_REF = "refs/swapmoe/patched"

State = Literal["clean", "applied", "partial", "conflict", "outdated"]
FileState = Literal["before", "after", "missing", "line-endings", "changed"]

_UNFINISHED = {
    "index.lock": "another git is running, or one was killed",
    "MERGE_HEAD": "a merge is unfinished",
    "CHERRY_PICK_HEAD": "a cherry-pick is unfinished",
    "REVERT_HEAD": "a revert is unfinished",
    "rebase-apply": "a rebase or am is unfinished",
    "rebase-merge": "a rebase is unfinished",
}
_HISTORY = 200


@dataclass(frozen=True)
class TreeStatus:
    """What a checkout holds; ``problems`` are the reasons not to touch it."""

    state: State
    files: Mapping[str, FileState]
    problems: tuple[str, ...]
    head: str | None
    base: str | None

    def describe_files(self, wanted: Sequence[FileState]) -> list[str]:
        """``path: state`` for files in one of the ``wanted`` states."""
        return [f"{path}: {state}" for path, state in self.files.items() if state in wanted]


def inspect(pin: Pin, repo: GitRepo) -> TreeStatus:
    """Compare every file of the manifest with the checkout, byte for byte, and list problems.

    ``outdated`` is only seen in the tool's own checkout: it holds, untouched, a commit the tool
    made from an earlier version of the series.
    """
    head = repo.rev("HEAD")
    base = find_base(pin, repo)
    files = file_states(pin.manifest, repo)
    problems = dirt(repo)
    state = _state(pin.manifest, files)
    if base is None:
        wanted = f"{pin.tag} ({pin.commit})"
        problems.append(f"HEAD is {head or 'unborn'}, which is not {wanted} nor built on it")
    elif not problems and head is not None and head == repo.rev(PATCHED_REF):
        if state != "applied" or _other_tree(pin.manifest, repo, base):
            state = "outdated"
    elif state == "clean" and repo.tree_of("HEAD") != repo.tree_of(base):
        problems.append(f"HEAD is {head}, which adds other commits to {pin.tag}")
    return TreeStatus(state, files, tuple(problems), head, base)


def find_base(pin: Pin, repo: GitRepo) -> str | None:
    """The commit below HEAD that is the pin, by commit id or by tree id."""
    if repo.rev("HEAD") is None:
        return None
    log = repo.run("log", "--first-parent", f"-n{_HISTORY}", "--format=%H %T", "HEAD").text
    for line in log.splitlines():
        commit, tree = line.split(" ")
        if commit == pin.commit or tree == pin.manifest.upstream.tree:
            return commit
    return None


def file_states(manifest: Manifest, repo: GitRepo) -> dict[str, FileState]:
    """The state of each file of the manifest."""
    on_disk = [file for file in manifest.file if (repo.path / file.path).is_file()]
    blobs = repo.hash_files([repo.path / file.path for file in on_disk])
    found = dict(zip((file.path for file in on_disk), blobs, strict=True))
    states: dict[str, FileState] = {}
    for file in manifest.file:
        blob = found.get(file.path)
        if blob == file.after:
            states[file.path] = "after"
        elif blob == file.before:
            states[file.path] = "before"
        elif blob is None:
            states[file.path] = "missing"
        elif _blob_without_cr(repo, file.path) in (file.before, file.after):
            states[file.path] = "line-endings"
        else:
            states[file.path] = "changed"
    return states


def dirt(repo: GitRepo) -> list[str]:
    """Everything in a checkout that is not committed, each named with its kind."""
    problems = []
    for name, meaning in _UNFINISHED.items():
        mark = repo.git_path(name)
        if mark.exists():
            problems.append(f"{meaning}: {mark}")
    entries = iter(repo.run("status", "--porcelain=v1", "-z", "--untracked-files=all").items)
    for entry in entries:
        code, path = entry[:2], entry[3:]
        if code[0] in "RC":
            next(entries, None)
        if code != "??":
            problems.append(f"{_describe(code)}: {path}")
    for path in sorted(_untracked(repo)):
        kind = "left over from patch" if path.endswith((".rej", ".orig")) else "untracked"
        problems.append(f"{kind}: {path}")
    return problems


def reset_own(repo: GitRepo) -> None:
    """Put the tool's own checkout back to the pin; ``build*`` and ``*.gguf`` stay."""
    for name in ("index.lock", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD"):
        repo.git_path(name).unlink(missing_ok=True)
    for name in ("rebase-apply", "rebase-merge"):
        shutil.rmtree(repo.git_path(name), ignore_errors=True)
    repo.run("checkout", "--quiet", "--force", "--detach", PRISTINE_REF)
    repo.run("clean", "--quiet", "-ffdx", "-e", "build*", "-e", "*.gguf")


def _untracked(repo: GitRepo) -> set[str]:
    plain = repo.run("ls-files", "-z", "--others", "--exclude-standard").items
    leftovers = repo.run("ls-files", "-z", "--others", "--", "*.rej", "*.orig").items
    return {*plain, *leftovers}


def _describe(code: str) -> str:
    if "U" in code or code in ("AA", "DD"):
        return "unmerged"
    return "staged" if code[0] != " " else "modified" if code[1] != "D" else "deleted"


def _state(manifest: Manifest, states: Mapping[str, FileState]) -> State:
    # A file whose before equals its after says nothing about the state.
    telling = {
        state
        for file in manifest.file
        if file.before != file.after or states[file.path] not in ("before", "after")
        for state in (states[file.path],)
    }
    if telling <= {"after"}:
        return "applied"
    if telling == {"before"}:
        return "clean"
    return "partial" if telling <= {"before", "after"} else "conflict"


def _other_tree(manifest: Manifest, repo: GitRepo, base: str) -> bool:
    same_base = repo.tree_of(base) == manifest.upstream.tree
    return same_base and repo.tree_of("HEAD") != manifest.series.tree


def _blob_without_cr(repo: GitRepo, path: str) -> str:
    data = Path(repo.path, path).read_bytes().replace(b"\r\n", b"\n")
    return repo.run("hash-object", "--no-filters", "--stdin", stdin=data).text
