"""A port in progress: a kept work tree of the store with the series cherry-picked onto a target."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from swapmoe import apply, compose, paths, port_store, port_target, tree
from swapmoe.errors import UpstreamError, UsageError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin
from swapmoe.port_target import Target

_MARKER = r"^(<<<<<<<|\|\|\|\|\|\|\||>>>>>>>)( |$)"


@dataclass(frozen=True)
class Work:
    """A port in progress. ``base`` and ``patched`` are the pin's commits, without and with the
    series; ``overlay`` is the commit between them that adds the overlay."""

    path: Path
    pin: str
    digest: str
    base: str
    overlay: str
    patched: str
    target: Target

    @property
    def repo(self) -> GitRepo:
        """The work tree."""
        return GitRepo(self.path)


@dataclass(frozen=True)
class Started:
    """What starting left: ``stopped`` is the subject of the patch with conflicts, if any."""

    work: Work
    stopped: str | None
    conflicts: tuple[str, ...]


def start(pin: Pin, to: str, source: str, *, force: bool = False) -> Started:
    """Make the work tree and cherry-pick the series; a conflict is left there, marked.

    ``force`` throws away a port to the same target that was started before.
    Raises UsageError when there is one, SeriesError when the series is not the recorded one, and
    what ``port_target.find`` raises.
    """
    found = apply.read_series(pin)
    with port_store.locked() as store:
        base = port_target.base_of(store, pin, source)
        target = port_target.find(store, to, source, pin.manifest.upstream.project)
        path = _folder(target.name)
        _clear(store, path, target.name, force=force)
        with store.scratch(keep_objects=True) as scratch:
            done = compose.compose(scratch, base, found)
        store.run("update-ref", f"refs/swapmoe/port/{target.name}", done.commit)
        listed = store.run("rev-list", "--reverse", f"{base}..{done.commit}").text.splitlines()
        overlay = listed[0] if found.overlay else base
        store.run("worktree", "add", "--quiet", "--detach", path, target.commit)
        work = Work(path, pin.tag, pin.manifest.series.digest, base, overlay, done.commit, target)
        paths.write_receipt(path, {**asdict(work), "path": str(path)})
    return _pick(work, "--keep-redundant-commits", f"{base}..{done.commit}")


def resume(work: Work, *, skip: bool = False) -> Started:
    """Commit the resolved patch, or ``skip`` it, and go on with the next ones.

    Raises UpstreamError while conflict markers are left, and when there is nothing to go on with.
    """
    repo = work.repo
    if not repo.git_path("CHERRY_PICK_HEAD").exists():
        raise UpstreamError(
            f"no patch is waiting in {work.path}",
            hint=f"swapmoe port finish --to {work.target.name}",
        )
    if skip:
        return _pick(work, "--skip")
    unmerged = repo.run("diff", "--name-only", "-z", "--diff-filter=U").items
    if left := markers(repo, unmerged):
        raise UpstreamError("conflict markers are left", evidence=left)
    repo.run("add", "--all", "--", ".")
    if repo.run("diff", "--cached", "--quiet", "HEAD", check=False).code == 0:
        raise UpstreamError(
            "nothing of the patch is left",
            hint=f"swapmoe port continue --to {work.target.name} --skip   # leaves it out",
        )
    return _pick(work, "--continue")


def markers(repo: GitRepo, files: Sequence[str], commit: str | None = None) -> list[str]:
    """``file:line:text`` of each conflict marker in ``files``, on disk or in ``commit``."""
    if not files:
        return []
    at = [commit] if commit else []
    found = repo.run("grep", "-nE", _MARKER, *at, "--", *files, check=False).text.splitlines()
    return [line.removeprefix(f"{commit}:") for line in found]


def _pick(work: Work, *how: str) -> Started:
    """Cherry-pick until a conflict or the end."""
    repo = work.repo
    picked = repo.run(
        *("-c", "merge.conflictStyle=diff3", "-c", "core.editor=true", "cherry-pick", *how),
        env={"GIT_EDITOR": "true"},
        check=False,
    )
    if picked.code == 0:
        return Started(work, None, ())
    unmerged = repo.run("diff", "--name-only", "-z", "--diff-filter=U").items
    stopped = repo.run("log", "-1", "--format=%s", "CHERRY_PICK_HEAD", check=False)
    if stopped.code != 0:
        raise UpstreamError("git cherry-pick failed", evidence=picked.err.splitlines())
    return Started(work, stopped.text, tuple(unmerged))


def load(to: str | None) -> Work:
    """The port in progress called ``to``, or the only one. Raises UsageError."""
    receipts = sorted(_root().glob("*.receipt.json"))
    known = {file.name.removesuffix(".receipt.json"): file for file in receipts}
    names = [name for name in known if (_root() / name).is_dir()]
    if to is None and len(names) == 1:
        to = names[0]
    work = _from_json(paths.read_receipt(_root() / to)) if to in names else None
    if work is None:
        raise UsageError(
            f"no port in progress{f': {to}' if to else ''}",
            evidence=[f"in progress: {', '.join(names) or 'none'}"],
            hint="swapmoe port start --to TAG",
        )
    return work


def unfinished(work: Work) -> list[str]:
    """What keeps a port from being finished; empty when all is committed."""
    repo = work.repo
    problems = tree.dirt(repo)
    if repo.run("merge-base", "--is-ancestor", work.target.commit, "HEAD", check=False).code:
        problems.append(f"HEAD is not built on {work.target.name} ({work.target.commit})")
    elif repo.run("rev-list", "--merges", f"{work.target.commit}..HEAD").text:
        problems.append("there are merge commits; a series is a line of commits")
    picked = repo.git_path("sequencer")
    if picked.exists() and not any("cherry-pick" in problem for problem in problems):
        problems.append(f"a cherry-pick is unfinished: {picked}")
    return problems


def forget(work: Work) -> None:
    """Remove the work tree and its receipt."""
    with port_store.locked() as store:
        _clear(store, work.path, work.target.name, force=True)


def _root() -> Path:
    return paths.cache_dir() / "port" / "work"


def _folder(name: str) -> Path:
    return _root() / name


def _clear(store: GitRepo, path: Path, name: str, *, force: bool) -> None:
    if path.exists() and not force:
        raise UsageError(
            f"a port to {name} is in progress: {path}",
            hint=f"swapmoe port finish --to {name}, or start anew with --force (its work is lost)",
        )
    shutil.rmtree(path, ignore_errors=True)
    paths.receipt_path(path).unlink(missing_ok=True)
    store.run("worktree", "prune")


def _from_json(data: dict[str, Any] | None) -> Work | None:
    if data is None or set(data) != {field.name for field in fields(Work)}:
        return None
    target = data["target"]
    if set(target) != {field.name for field in fields(Target)}:
        return None
    return Work(**{**data, "path": Path(data["path"]), "target": Target(**target)})
