"""Turning a series into commits: an index of its own, no work tree, strict, all or nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from swapmoe import gitrepo
from swapmoe.errors import ApplyError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import HashedFile, Manifest, SeriesFacts, TouchedFile, Upstream
from swapmoe.series import OverlayFile, Patch, Series

_OVERLAY_MESSAGE = """swapmoe: overlay: add new files

The files of the series' overlay folder. The following commits only insert calls to them.
"""


@dataclass(frozen=True)
class Composed:
    """The commits made of a series on top of ``base``."""

    base: str
    commit: str
    tree: str


def compose(repo: GitRepo, base: str, series: Series) -> Composed:
    """Commit the overlay, then each patch in order, on ``base``; work tree and refs stay.

    ``repo`` must be a scratch repository (``GitRepo.scratch``). Identity and dates are fixed,
    so the same series on the same base gives the same commit everywhere.
    Raises ApplyError naming the first patch that does not apply exactly.
    """
    repo.run("read-tree", base)
    commit = base
    if series.overlay:
        _stage(repo, base, series.overlay)
        tree = repo.run("write-tree").text
        commit = repo.run("commit-tree", tree, "-p", base, stdin=_OVERLAY_MESSAGE.encode()).text
    for patch in series.patches:
        _apply(repo, patch)
        commit = commit_tree(repo, repo.run("write-tree").text, commit, patch)
    tree_id = repo.tree_of(commit)
    assert tree_id is not None
    return Composed(base, commit, tree_id)


def commit_tree(repo: GitRepo, tree: str, parent: str, patch: Patch) -> str:
    """Commit a tree with the message and author of a patch."""
    message = patch.message.encode()
    return repo.run("commit-tree", tree, "-p", parent, stdin=message, env=_author(patch)).text


def make_manifest(repo: GitRepo, upstream: Upstream, series: Series, done: Composed) -> Manifest:
    """The manifest of a composed series; ``upstream.tree`` is taken from the base commit."""
    touched = {file.path for file in series.overlay}
    for patch in series.patches:
        for change in patch.changes:
            touched |= {change.path, change.old_path}
    before = repo.blobs(done.base, touched)
    after = repo.blobs(done.commit, touched)
    return Manifest(
        upstream=upstream.model_copy(update={"tree": repo.tree_of(done.base)}),
        series=SeriesFacts(digest=series.digest, tree=done.tree),
        overlay=tuple(HashedFile(file=f.path, sha256=f.sha256) for f in series.overlay),
        patch=tuple(HashedFile(file=p.name, sha256=p.sha256) for p in series.patches),
        file=tuple(
            TouchedFile(
                path=path,
                before=before.get(path),
                after=after[path],
                patches=series.patches_of(path),
            )
            for path in sorted(after)
        ),
    )


def folder_drift(manifest: Manifest, series: Series) -> list[str]:
    """Files of the series folder that are not those the manifest was made from."""
    found: list[str] = []
    pairs = (
        ("overlay/", manifest.overlay, {f.path: f.sha256 for f in series.overlay}),
        ("", manifest.patch, {p.name: p.sha256 for p in series.patches}),
    )
    for prefix, recorded, present in pairs:
        known = {entry.file: entry.sha256 for entry in recorded}
        for name in sorted({*known, *present}):
            if name not in present:
                found.append(f"{prefix}{name}: missing")
            elif name not in known:
                found.append(f"{prefix}{name}: not in the manifest")
            elif known[name] != present[name]:
                found.append(f"{prefix}{name}: sha256 {present[name]}, recorded {known[name]}")
    if not found and manifest.series.digest != series.digest:
        found.append("series: the order of the patches changed")
    return found


def _stage(repo: GitRepo, base: str, overlay: tuple[OverlayFile, ...]) -> None:
    taken = repo.blobs(base, [file.path for file in overlay])
    if taken:
        raise ApplyError(
            "overlay files exist upstream already",
            evidence=sorted(taken),
            hint="rename them, or change the upstream file with a patch",
        )
    blobs = repo.hash_files([file.source for file in overlay], write=True)
    entries = "".join(
        f"100644 {blob}\t{file.path}\0" for file, blob in zip(overlay, blobs, strict=True)
    )
    repo.run("update-index", "-z", "--index-info", stdin=entries.encode())


def _apply(repo: GitRepo, patch: Patch) -> None:
    result = repo.run("apply", "--cached", "--verbose", "-", stdin=patch.raw_diff, check=False)
    if result.code != 0:
        lines = [
            line.removeprefix("error: ")
            for line in result.err.splitlines()
            if line.startswith("error: ")
        ]
        raise ApplyError(
            f"patch does not apply: {patch.name}",
            evidence=lines or result.err.splitlines(),
            hint=f"compare with its source: swapmoe patch show {patch.name}",
        )


def _author(patch: Patch) -> Mapping[str, str]:
    name, address = patch.author
    return {
        "GIT_AUTHOR_NAME": name or gitrepo.IDENTITY,
        "GIT_AUTHOR_EMAIL": address or gitrepo.EMAIL,
        "GIT_AUTHOR_DATE": patch.date or gitrepo.FIXED_DATE,
    }
