"""Finishing a port: the work tree becomes ``patches/<tag>/``, proven from nothing."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from swapmoe import (
    apply,
    compose,
    lint,
    pins,
    port_check,
    port_export,
    port_notes,
    port_prove,
    port_store,
    port_work,
    series,
)  # fmt: skip
from swapmoe.errors import SeriesError, UpstreamError, UsageError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin, Upstream
from swapmoe.port_work import Work


@dataclass(frozen=True)
class Finished:
    """A written pin; ``overlay_edits`` are overlay files taken over from the work tree.

    ``unexplained`` are hooks in PORTING.md that still need a line by hand; ``unnamed`` says which
    hooks are in a function that no trailer names.
    """

    pin: Pin
    base: str
    overlay_edits: tuple[str, ...]
    unexplained: tuple[str, ...]
    unnamed: tuple[str, ...]


def finish(work: Work, *, tag: str | None = None, commit: str | None = None) -> Finished:
    """Write and prove the series of a port. The folder appears whole or not at all.

    ``tag`` and ``commit`` say which upstream build this is where the target does not.
    Raises UpstreamError for unfinished work, UsageError when tag or commit are not known, and
    SeriesError or ApplyError when the new series breaks a rule or is not what the work tree holds.
    """
    facts = _facts(work, tag, commit)
    problems = port_work.unfinished(work) or _markers(work)
    if problems:
        raise UpstreamError(
            f"the port is not finished: {work.path}",
            evidence=problems,
            hint=f"commit or remove each of them in {work.path}, then the same command again",
        )
    old = pins.load(work.pin)
    before = series.read(old.series_dir)
    known = {patch.subject: patch.name for patch in before.patches}
    patches, in_tree = port_export.export(work.repo, work.target.commit, "HEAD", known)
    edits = _take_overlay(work, series.overlay_dir(old.series_dir), in_tree)
    folder = pins.patches_dir() / facts.tag
    new = folder.with_name(f"{facts.tag}.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        overlay = series.overlay_dir(old.series_dir)
        port_export.write(new, patches, Path(os.path.relpath(overlay, new)).as_posix())
        with port_store.locked() as store:
            if edits:
                apply.refresh(old.series_dir, old.manifest.upstream, store, work.base)
            _check(work, new, facts, store)
            ranges = _range_diff(work, new, store)
            with store.scratch() as scratch:
                ready = port_check.prepare(scratch, work.base, series.read(old.series_dir))
                report, _ = port_check.compare(ready, work.pin, work.target)
                ported = port_check.prepare(scratch, work.target.commit, series.read(new))
                unnamed = port_check.unnamed(ported)
        if (folder / port_notes.NAME).is_file():
            shutil.copyfile(folder / port_notes.NAME, new / port_notes.NAME)
        unexplained = port_notes.write(new, report, facts.tag, ranges)
        _replace(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return Finished(
        pins.load(facts.tag), work.target.commit, edits, tuple(unexplained), tuple(unnamed)
    )


def _facts(work: Work, tag: str | None, commit: str | None) -> Upstream:
    target = work.target
    tag = tag or target.tag
    commit = commit or target.upstream
    if tag is None or (commit is None and not target.archive):
        raise UsageError(
            "tag and full commit id of the new pin are needed",
            evidence=[f"tag: {tag or 'unknown'}", f"commit: {commit or 'unknown'}"],
            hint=f"swapmoe port finish --to {target.name} --tag bNNNN --commit ID",
        )
    if tag == work.pin:
        raise UsageError(f"{tag} is the pin this port started from")
    return pins.new_upstream(tag, commit, target.archive_sha256 if target.archive else None)


def _markers(work: Work) -> list[str]:
    changed = work.repo.run("diff", "-z", "--name-only", work.target.commit, "HEAD").items
    if not changed:
        return ["the work tree adds nothing to the target"]
    return [f"conflict marker: {line}" for line in port_work.markers(work.repo, changed, "HEAD")]


def _take_overlay(work: Work, folder: Path, in_tree: dict[str, str]) -> tuple[str, ...]:
    """Copy overlay files edited in the work tree to the overlay folder.

    Raises SeriesError when the folder's own copy changed meanwhile, or when files went away.
    """
    repo = work.repo
    listed = repo.run("diff-tree", "-r", "-z", "--name-only", work.base, work.overlay).items
    started = repo.blobs(work.overlay, listed)
    here = {path for path in {*started, *in_tree} if (folder / path).is_file()}
    blobs = dict(
        zip(sorted(here), repo.hash_files([folder / p for p in sorted(here)]), strict=True)
    )
    edited = [
        path for path in sorted({*started, *in_tree}) if in_tree.get(path) != started.get(path)
    ]
    clashes = [
        f"overlay/{path}"
        for path in edited
        if path not in in_tree or blobs.get(path) not in (started.get(path), in_tree[path])
    ]
    if clashes:
        raise SeriesError(
            "overlay files were removed in the work tree, or changed there and in the folder",
            evidence=clashes,
            hint=f"make them equal by hand: {work.path} and {folder}",
        )
    taken = [path for path in edited if blobs.get(path) != in_tree[path]]
    for path in taken:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(repo.run("cat-file", "blob", in_tree[path]).out)
    return tuple(taken)


def _check(work: Work, new: Path, facts: Upstream, store: GitRepo) -> None:
    """Write the manifest; the rules hold, the hooks are those of the work tree, git agrees."""
    apply.refresh(new, facts, store, work.target.commit)
    report = lint.lint(new, store, work.target.commit)
    if report.findings:
        raise SeriesError(
            f"{len(report.findings)} findings in the ported series",
            evidence=[f"{item.rule} {item.where}: {item.text}" for item in report.findings],
            hint=f"git commit --amend or git rebase -i in {work.path}; rules: patches/README.md",
        )
    manifest = pins.read_manifest(new)
    pin = Pin(facts.tag, facts.build_number, manifest.upstream.source_id, new, manifest)
    hooks = [file for file in pin.manifest.file if file.before is not None]
    held = work.repo.blobs("HEAD", [file.path for file in hooks])
    wrong = [file.path for file in hooks if held.get(file.path) != file.after]
    if wrong:
        raise SeriesError("the exported series is not what the work tree holds", evidence=wrong)
    port_prove.prove(pin, store, work.target.commit)


def _range_diff(work: Work, new: Path, store: GitRepo) -> str:
    found = series.read(new)
    with store.scratch() as scratch:
        done = compose.compose(scratch, work.target.commit, found)
        listed = scratch.run("rev-list", "--reverse", f"{done.base}..{done.commit}").text
        first = listed.splitlines()[0] if found.overlay else done.base
        text = scratch.run(
            "range-diff",
            "--no-color",
            "--creation-factor=100",
            f"{work.overlay}..{work.patched}",
            f"{first}..{done.commit}",
        ).text
    return re.sub(r"(?m)[ \t]+$", "", text)


def _replace(new: Path, folder: Path) -> None:
    old = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
