"""``port matrix``: every hook against many builds, and the first build where each breaks."""

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from swapmoe import (
    apply,
    console,
    index_builds,
    paths,
    port_check,
    port_hooks,
    port_store,
    port_target,
)  # fmt: skip
from swapmoe.errors import UpstreamError, UsageError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin
from swapmoe.port_check import Prepared
from swapmoe.port_hooks import Hook
from swapmoe.port_report import Report
from swapmoe.port_target import LATEST, Target

JOBS = 2
"""Builds worked on, and so downloads, at once."""

_VERSION = 3
"""Of the rules behind the verdicts: another one makes stored results void."""


@dataclass(frozen=True)
class Break:
    """The first build on which a hook needs a look, or ``hard``: cannot be placed at all.

    ``good`` is the build before it, None when the first one looked at is broken already.
    """

    hook: Hook
    good: str | None
    first: str | None
    hard_good: str | None
    hard: str | None


@dataclass(frozen=True)
class Matrix:
    """Reports by build, oldest first. ``offered`` counts the builds there were to choose from."""

    pin: str
    reports: tuple[Report, ...]
    offered: int
    source: str

    @property
    def tags(self) -> tuple[str, ...]:
        """The builds that were checked."""
        return tuple(report.target.name for report in self.reports)

    def breaks(self) -> tuple[Break, ...]:
        """For each hook of the pin, where it breaks first."""
        found = []
        for number, hook in enumerate(self.reports[-1].hooks):
            column = [report.hooks[number] for report in self.reports]
            soft = next((i for i, h in enumerate(column) if not is_clean(h)), None)
            hard = next((i for i, h in enumerate(column) if is_hard(h)), None)
            found.append(Break(hook, *self._names(soft), *self._names(hard)))
        return tuple(found)

    def newest_clean(self) -> str | None:
        """The newest build up to which every hook applies by itself."""
        clean = [report.clean for report in self.reports]
        first = clean.index(False) if False in clean else len(clean)
        return self.tags[first - 1] if first else None

    def _names(self, at: int | None) -> tuple[str | None, str | None]:
        if at is None:
            return None, None
        return (self.tags[at - 1] if at else None), self.tags[at]


def is_clean(hook: Hook) -> bool:
    """Whether the hook applies by itself, in its function."""
    return hook.verdict in port_hooks.CLEAN


def is_hard(hook: Hook) -> bool:
    """Whether the hook has to be placed by hand."""
    return hook.verdict in ("conflict", "gone", "broken")


def run(pin: Pin, first: str, last: str, source: str, *, step: int = 1, jobs: int = JOBS) -> Matrix:
    """Check the builds from ``first`` to ``last``; every ``step``-th, then bisect each change.

    Results and source trees are kept, archives are not; a second run takes seconds.
    Raises UsageError for an empty range and UpstreamError when no builds can be listed.
    """
    found = apply.read_series(pin)
    names, get, where = _builds(source, pin.manifest.upstream.project)
    chosen = _range(names, first, last)
    with port_store.locked() as store:
        base = port_target.base_of(store, pin, "auto" if source == "archive" else source)
        with store.scratch(keep_objects=True) as scratch:
            ready = port_check.prepare(scratch, base, found)
        done: dict[int, Report] = {}
        wanted = sorted({*range(0, len(chosen), step), len(chosen) - 1})
        while wanted:
            with ThreadPoolExecutor(jobs) as pool:
                work = [
                    pool.submit(_check, store, ready, pin.tag, chosen[at], get) for at in wanted
                ]
                for at, one in zip(wanted, work, strict=True):
                    done[at] = one.result()
                    counts = ", ".join(f"{n} {name}" for name, n in done[at].counts.items())
                    console.say(f"{len(done)} {chosen[at]}: {counts}")
            wanted = _between(done)
    reports = tuple(done[at] for at in sorted(done))
    return Matrix(pin.tag, reports, len(chosen), where)


def to_json(matrix: Matrix) -> dict[str, Any]:
    """The matrix as plain data; reports of single builds are in the CSV."""
    return {
        "pin": matrix.pin,
        "builds": list(matrix.tags),
        "newest_clean": matrix.newest_clean(),
        "hooks": [
            {
                "patch": item.hook.patch,
                "file": item.hook.file,
                "hunk": item.hook.hunk,
                "function": item.hook.function,
                "needs_a_look": item.first,
                "last_clean": item.good,
                "by_hand": item.hard,
                "last_placed": item.hard_good,
                "now": item.hook.verdict,
            }
            for item in matrix.breaks()
        ],
    }


def _between(done: dict[int, Report]) -> list[int]:
    """Builds in the middle of two checked ones between which a hook begins to break."""
    places = sorted(done)
    wanted = set()
    for test in (is_clean, lambda hook: not is_hard(hook)):
        for number in range(len(done[0].hooks)):
            bad = next((i for i, at in enumerate(places) if not test(done[at].hooks[number])), 0)
            if bad and places[bad] - places[bad - 1] > 1:
                wanted.add((places[bad] + places[bad - 1]) // 2)
    return sorted(wanted)


Get = Callable[[GitRepo, str], Target]


def _builds(source: str, project: str) -> tuple[list[str], Get, str]:
    """Tags, oldest first; how to get one into the store; where they come from."""
    if source in ("auto", "archive"):
        try:
            listed = {build.tag: build for build in index_builds.list_builds()}
        except UpstreamError as error:
            if source == "archive":
                raise
            console.note(f"{error.message}; taking git tags instead")
        else:
            where = "source archives of the package index"
            get: Get = lambda store, tag: port_target.add_listed(store, listed[tag], show=False)  # noqa: E731
            return list(listed), get, where
    url = port_target.url_of(source, project)
    with tempfile.TemporaryDirectory() as folder:
        text = GitRepo(Path(folder)).run("ls-remote", "--tags", "--", url).text
    numbers = sorted({int(number) for number in re.findall(r"(?m)\trefs/tags/b([0-9]+)$", text)})
    if not numbers:
        raise UpstreamError("the repository has no build tags (bNNNN)", evidence=[url])
    tags = [f"b{number}" for number in numbers]
    return tags, lambda store, tag: port_target.find(store, tag, source, project), "git tags"


def _range(tags: Sequence[str], first: str, last: str) -> list[str]:
    for name in (first, last):
        if name != LATEST and not re.fullmatch(r"b[0-9]+", name):
            raise UsageError(f"not a build tag: {name}", hint="--from bNNNN --to bNNNN or latest")
    low = int(first[1:]) if first != LATEST else int(tags[-1][1:])
    high = int(last[1:]) if last != LATEST else int(tags[-1][1:])
    chosen = [tag for tag in tags if low <= int(tag[1:]) <= high]
    if not chosen:
        raise UsageError(
            f"no builds from {first} to {last}", evidence=[f"there are {tags[0]} to {tags[-1]}"]
        )
    return chosen


def _check(store: GitRepo, ready: Prepared, pin: str, tag: str, get: Get) -> Report:
    target = get(store, tag)
    file = paths.cache_dir() / "port" / "results" / f"{_key(store, ready, target)}.json"
    stored = _load(file, pin, target)
    if stored is None:
        with store.scratch() as scratch:
            stored, _ = port_check.compare(replace(ready, repo=scratch), pin, target)
        paths.atomic_write_text(file, json.dumps(asdict(stored)))
    return stored


def _key(store: GitRepo, ready: Prepared, target: Target) -> str:
    facts = [
        _VERSION,
        store.tree_of(target.commit),
        store.tree_of(ready.base),
        [(patch.name, patch.sha256) for patch in ready.series.patches],
        [file.path for file in ready.series.overlay],
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _load(file: Path, pin: str, target: Target) -> Report | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        hooks = tuple(
            Hook(**{**hook, "upstream": tuple(hook["upstream"]), "ours": tuple(hook["ours"])})
            for hook in data["hooks"]
        )
        parts = {
            name: tuple(data[name]) for name in ("problems", "equivalents", "notes", "commits")
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None
    assert set(data) == {field.name for field in fields(Report)}
    return Report(pin, target, hooks, **parts)
