"""``port check``: the verdict on every hook for another llama.cpp; read-only."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from swapmoe import apply, port_build, port_equiv, port_hooks, port_pick, port_store, port_target
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin
from swapmoe.port_pick import PinStep, Step
from swapmoe.port_report import Report
from swapmoe.port_target import Target
from swapmoe.port_text import Texts
from swapmoe.series import Series


@dataclass(frozen=True)
class Prepared:
    """A series as commits on its pin, in a scratch repository."""

    repo: GitRepo
    base: str
    series: Series
    steps: tuple[PinStep, ...]


def check(pin: Pin, to: str, source: str, *, build: bool = False) -> Report:
    """Compare the series of ``pin`` with the llama.cpp called ``to``.

    Works on the tool's own store: no checkout is changed. ``build`` also compiles the merged
    series and runs the gates where every hook found its place.
    Raises UsageError and UpstreamError when the target cannot be had, SeriesError when the series
    is not the recorded one.
    """
    found = apply.read_series(pin)
    with port_store.locked() as store:
        base = port_target.base_of(store, pin, source)
        target = port_target.find(store, to, source, pin.manifest.upstream.project)
        with store.scratch(keep_objects=build) as scratch:
            report, steps = compare(prepare(scratch, base, found), pin.tag, target)
            report = replace(report, commits=_commits(pin, report))
            if not build or not can_build(report):
                return report
            commit = port_build.commit_steps(scratch, steps, target)
    return port_build.gate(pin, report, commit)


def can_build(report: Report) -> bool:
    """Whether every hook has a place, seen or unseen by a person."""
    wanted = (*port_hooks.CLEAN, "merged", "upstreamed")
    return not report.problems and all(hook.verdict in wanted for hook in report.hooks)


def _commits(pin: Pin, report: Report) -> tuple[str, ...]:
    """Upstream's commits since the pin in the files of drifted hooks, where a clone has them."""
    clone, target = Path(report.target.origin), report.target.upstream
    files = sorted({hook.file for hook in report.drifted})
    if target is None or not files or not clone.is_dir():
        return ()
    log = ("log", "--no-decorate", "--format=%h %s", f"{pin.commit}..{target}", "--", *files)
    listed = GitRepo(clone).run(*log, check=False)
    return tuple(listed.text.splitlines()) if listed.code == 0 else ()


def prepare(repo: GitRepo, base: str, series: Series) -> Prepared:
    """Commit the patches of a series on ``base``. Raises ApplyError when they do not fit."""
    return Prepared(repo, base, series, port_pick.pin_steps(repo, base, series))


def unnamed(ready: Prepared) -> list[str]:
    """What to say about hooks whose function is in no ``Hook:`` trailer."""
    texts = Texts(ready.repo)
    return [
        f"no Hook: trailer of {hook.patch} names {hook.file} {hook.function}"
        for step in ready.steps
        for hook in port_hooks.unnamed(texts, step)
    ]


def compare(ready: Prepared, tag: str, target: Target) -> tuple[Report, list[Step]]:
    """The verdicts on one target, and the patches on it."""
    repo = ready.repo
    paths = {path for step in ready.steps for path in step.before}
    there = repo.blobs(target.commit, paths)
    moved = port_pick.renames(repo, ready.base, target.commit, paths - set(there))
    steps = port_pick.pick(repo, ready.steps, target.commit, moved)
    texts = Texts(repo)
    places: Mapping[str, str | None] = {
        path: path if path in there else moved.get(path) for path in paths
    }
    hooks = [
        hook
        for step in steps
        for path in step.pin.before
        for hook in port_hooks.judge(texts, step, path, places[path])
    ]
    taken = repo.blobs(target.commit, [file.path for file in ready.series.overlay])
    problems = tuple(f"overlay file exists upstream now: {path}" for path in sorted(taken))
    here = port_equiv.found(repo, target.commit)
    before = port_equiv.found(repo, ready.base)
    notes = [
        f"upstream has {item.name} now ({item.hooks}): {item.then}"
        for item in here
        if item not in before
    ]
    words = port_equiv.new_expert_words(repo, target.commit)
    if words:
        notes.append(f"upstream names expert tensors this tool does not know: {', '.join(words)}")
    notes += unnamed(ready)
    names = tuple(item.name for item in here)
    return Report(tag, target, tuple(hooks), problems, names, tuple(notes)), steps
