"""Applying and verifying a series: states, all-or-nothing apply, proof by blobs and tree id."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from swapmoe import compose, console, paths, pins, series, tree, upstream
from swapmoe.errors import ApplyError, SeriesError, UpstreamError
from swapmoe.gitrepo import GitRepo, open_checkout
from swapmoe.pins import Manifest, Pin
from swapmoe.tree import PATCHED_REF, TreeStatus


@dataclass(frozen=True)
class PatchedTree:
    """A verified checkout with the series in it."""

    path: Path
    tree_id: str
    commit: str


def ensure_patched(pin: Pin, source: str = "auto") -> PatchedTree:
    """The tool's own checkout with the series applied and verified; fetches what is missing.

    Raises UpstreamError (source, dirty checkout), SeriesError (folder against manifest) and
    ApplyError (does not apply, or the tree is not the recorded one).
    """
    path = upstream.ensure_source(pin, source)
    with upstream.disk_errors(path), paths.lock(path):
        apply(pin, open_checkout(path), own=True)
        return verify(pin, open_checkout(path), thorough=False)


def read_series(pin: Pin) -> series.Series:
    """The series of ``pin``, proven to be the one its manifest describes, else SeriesError."""
    found = series.read(pin.series_dir)
    drift = compose.folder_drift(pin.manifest, found)
    if drift:
        raise SeriesError(
            f"the series {pin.tag} is not the one its manifest describes",
            evidence=drift,
            hint=f"undo the change, or record it: swapmoe patch refresh --pin {pin.tag}",
        )
    for patch in found.patches:
        if patch.had_crlf:
            console.note(f"{patch.name} has CRLF line endings; applied with LF")
    return found


def apply(pin: Pin, repo: GitRepo, *, own: bool = False, force: bool = False) -> TreeStatus:
    """Bring the series into a checkout and return what the checkout held before.

    On ``applied`` nothing happens. ``own`` marks the tool's checkout: an earlier version of the
    series is replaced there, and ``force`` first resets it, except for ``build*`` and ``*.gguf``.
    Raises ApplyError on partial and conflict, UpstreamError on a dirty checkout, SeriesError when
    folder and manifest differ; the checkout is then as it was.
    """
    found = read_series(pin)
    if own and force:
        tree.reset_own(repo)
    status = tree.inspect(pin, repo)
    if status.state == "applied":
        return status
    _refuse_unclean(pin, repo, status)
    base = status.base
    assert base is not None
    with repo.scratch() as scratch:
        _check_tree(pin, scratch, compose.compose(scratch, base, found))
    with repo.scratch(keep_objects=True) as scratch:
        done = compose.compose(scratch, base, found)
    _move(pin, repo, done.commit, own=own)
    return status


def verify(pin: Pin, repo: GitRepo, *, thorough: bool = True) -> PatchedTree:
    """Prove that the files on disk are the recorded patched tree, nothing more or less.

    The files of the series are always read. The others are read when ``thorough``, else only
    those whose size or time differs from git's index (0.1 s instead of 1 s).
    Raises SeriesError for a folder that differs from its manifest, ApplyError naming each file
    that differs from the recorded tree.
    """
    found = read_series(pin)
    status = tree.inspect(pin, repo)
    wrong = status.describe_files(("before", "missing", "line-endings", "changed"))
    if status.state == "clean":
        raise ApplyError(
            f"the series is not applied in {repo.path}", hint=_apply_command(pin, repo)
        )
    if wrong:
        raise ApplyError(
            f"not the recorded patched tree: {repo.path}", evidence=wrong, hint=_restore(pin, repo)
        )
    with repo.scratch() as scratch:
        if thorough:
            scratch.run("read-tree", "HEAD")
        else:
            shutil.copy2(repo.git_path("index"), scratch.env["GIT_INDEX_FILE"])
        scratch.run("add", "--all", "--", ".")
        scratch.run("add", "--force", "--", *status.files)
        actual = scratch.run("write-tree").text
        wanted = pin.manifest.series.tree
        if status.base is not None:
            done = compose.compose(scratch, status.base, found)
            if scratch.tree_of(status.base) != pin.manifest.upstream.tree:
                wanted = done.tree
        if actual != wanted:
            raise ApplyError(
                f"not the recorded patched tree: {repo.path}",
                evidence=[
                    f"tree id {actual}, recorded {wanted}",
                    *_differing(scratch, wanted, actual),
                ],
                hint=_restore(pin, repo),
            )
    return PatchedTree(repo.path, actual, status.head or "")


def refresh(pin_dir: Path, facts: pins.Upstream, repo: GitRepo, base: str) -> Manifest:
    """Apply the folder's series to the pristine ``base`` in a scratch place and write the manifest.

    Raises SeriesError for an unreadable series and ApplyError when a patch does not apply.
    """
    found = series.read(pin_dir)
    with repo.scratch() as scratch:
        done = compose.compose(scratch, base, found)
        manifest = compose.make_manifest(scratch, facts, found, done)
    pins.write_manifest(pin_dir, manifest)
    return manifest


def export(pin: Pin, repo: GitRepo, base: str) -> bytes:
    """The whole series as one patch for plain ``git apply``; the same bytes everywhere.

    Raises SeriesError and ApplyError like ``apply``.
    """
    found = read_series(pin)
    facts = pin.manifest
    head = (
        f"swapmoe patch series for {facts.upstream.project} {facts.upstream.tag}\n"
        f"commit {facts.upstream.source_id}\n"
        f"git tree id after applying: {facts.series.tree}\n"
        "MIT License, like llama.cpp, whose lines it quotes.\n\n"
    )
    with repo.scratch() as scratch:
        done = compose.compose(scratch, base, found)
        _check_tree(pin, scratch, done)
        diff = scratch.run(
            "diff-tree", "-p", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv",
            "--no-color", "--diff-algorithm=myers", "-U3", "--src-prefix=a/", "--dst-prefix=b/",
            base, done.commit,
        )  # fmt: skip
    return head.encode() + diff.out


def _move(pin: Pin, repo: GitRepo, commit: str, *, own: bool) -> None:
    """Bring ``commit`` into the work tree, known to be clean; a failure is taken back."""
    before = repo.rev("HEAD") or "HEAD"
    try:
        if own:
            repo.run("checkout", "--quiet", "--detach", commit)
            repo.run("update-ref", PATCHED_REF, commit)
        else:
            repo.run("merge", "--quiet", "--ff-only", commit)
    except BaseException:
        repo.run("reset", "--quiet", "--hard", before, check=False)
        new = [file.path for file in pin.manifest.file if file.before is None]
        if new:
            repo.run("clean", "--quiet", "--force", "-x", "--", *new, check=False)
        raise


def _refuse_unclean(pin: Pin, repo: GitRepo, status: TreeStatus) -> None:
    if status.state in ("partial", "conflict"):
        kind = (
            "only part of the series is applied"
            if status.state == "partial"
            else "the series conflicts with what is there"
        )
        raise ApplyError(
            f"{kind}: {repo.path}",
            evidence=[
                *(f"{path}: {state}" for path, state in status.files.items()),
                *status.problems,
            ],
            hint=_restore(pin, repo),
        )
    if status.problems:
        raise UpstreamError(
            f"the checkout is not clean: {repo.path}",
            evidence=status.problems,
            hint=_restore(pin, repo),
        )


def _check_tree(pin: Pin, repo: GitRepo, done: compose.Composed) -> None:
    manifest = pin.manifest
    if repo.tree_of(done.base) == manifest.upstream.tree and done.tree != manifest.series.tree:
        raise SeriesError(
            f"the series {pin.tag} does not give the tree its manifest records",
            evidence=[f"tree id {done.tree}, recorded {manifest.series.tree}"],
            hint=f"swapmoe patch refresh --pin {pin.tag}",
        )
    after = repo.blobs(done.commit, [file.path for file in manifest.file])
    wrong = [file.path for file in manifest.file if after.get(file.path) != file.after]
    if wrong:
        raise ApplyError("files differ from the manifest after applying", evidence=wrong)


def _differing(repo: GitRepo, wanted: str, actual: str) -> list[str]:
    if repo.rev(f"{wanted}^{{tree}}") is None:
        return []
    return repo.run("diff-tree", "-r", "-z", "--name-only", wanted, actual).items[:20]


def _is_own(pin: Pin, repo: GitRepo) -> bool:
    return repo.path == paths.source_dir(pin.manifest.upstream.tag).resolve()


def _apply_command(pin: Pin, repo: GitRepo) -> str:
    tail = "" if _is_own(pin, repo) else f" --tree {repo.path}"
    return f"swapmoe patch apply --pin {pin.tag}{tail}"


def _restore(pin: Pin, repo: GitRepo) -> str:
    if _is_own(pin, repo):
        return f"{_apply_command(pin, repo)} --force   # resets the tool's own checkout"
    return f"look with: git -C {repo.path} status; then {_apply_command(pin, repo)}"
