"""Picking the series onto another tree, twice: by strict apply and by three-way merge.

Both run on git objects alone. Where a merge conflicts, upstream's side is kept, so that the
patches that follow are still looked at.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from swapmoe import compose
from swapmoe.errors import ToolError, UpstreamError
from swapmoe.gitrepo import GitRepo
from swapmoe.port_text import Texts
from swapmoe.series import Patch, Series

_REGION = re.compile(
    rb"^<<<<<<< [^\n]*\n(?P<ours>.*?)^=======\r?\n(?P<theirs>.*?)^>>>>>>> [^\n]*(?:\n|\Z)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Region:
    """A conflict: what upstream has there, and what the pin has with the patch."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]


@dataclass(frozen=True)
class PinStep:
    """One patch at its pin: blobs of its files before and after it."""

    patch: Patch
    parent: str
    commit: str
    before: Mapping[str, str]
    after: Mapping[str, str]


@dataclass
class Step:
    """One patch on the target; blobs by the pin's path, absent where the file is missing.

    ``tree`` is the target's tree with this patch and those before it merged.
    """

    pin: PinStep
    start: dict[str, str] = field(default_factory=dict)
    strict_start: dict[str, str] = field(default_factory=dict)
    strict: dict[str, str] = field(default_factory=dict)
    strict_error: dict[str, str] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)
    regions: dict[str, tuple[Region, ...]] = field(default_factory=dict)
    tree: str = ""


def pin_steps(repo: GitRepo, base: str, series: Series) -> tuple[PinStep, ...]:
    """The patches of a series as commits on ``base``, without the overlay.

    ``repo`` is a scratch repository. Raises ApplyError when the series does not fit its pin.
    """
    done = compose.compose(repo, base, Series(series.folder, (), series.patches))
    commits = repo.run("rev-list", "--reverse", f"{base}..{done.commit}").text.splitlines()
    steps = []
    for patch, parent, commit in zip(series.patches, [base, *commits[:-1]], commits, strict=True):
        files = [change.path for change in patch.changes]
        before, after = repo.blobs(parent, files), repo.blobs(commit, files)
        steps.append(PinStep(patch, parent, commit, before, after))
    return tuple(steps)


def renames(repo: GitRepo, base: str, target: str, missing: set[str]) -> dict[str, str]:
    """New paths of ``missing`` files, where git finds a similar file in the target."""
    if not missing:
        return {}
    items = repo.run(
        *("-c", "diff.renameLimit=0", "diff-tree", "-r", "-z", "-M", "--diff-filter=R"),
        *("--name-status", base, target),
    ).items
    pairs = dict(zip(items[1::3], items[2::3], strict=True))
    return {old: pairs[old] for old in sorted(missing) if old in pairs}


def pick(
    repo: GitRepo, steps: tuple[PinStep, ...], target: str, moved: Mapping[str, str]
) -> list[Step]:
    """Each patch on ``target``, in order. ``moved`` maps pin paths to the target's.

    Raises ToolError when git is too old.
    """
    texts = Texts(repo)
    paths = {path for step in steps for path in step.before}
    places = {path: moved.get(path, path) for path in paths}
    there = repo.blobs(target, places.values())
    merged = {path: there[place] for path, place in places.items() if place in there}
    strict = {path: blob for path, blob in merged.items() if path not in moved}
    repo.run("read-tree", target)
    tree = repo.tree_of(target)
    assert tree is not None
    found: list[Step] = []
    for pin in steps:
        step = Step(pin, start=dict(merged), strict_start=dict(strict))
        changed = [path for path in pin.before if merged.get(path) != pin.before[path]]
        _strict(repo, step, strict)
        if changed:
            tree = _merge(repo, texts, step, tree, places)
            merged = {**merged, **step.merged}
        else:
            merged.update(pin.after)
            step.merged = dict(pin.after)
            tree = _with(repo, tree, {places[path]: blob for path, blob in pin.after.items()})
        step.tree = tree
        found.append(step)
    return found


def _strict(repo: GitRepo, step: Step, state: dict[str, str]) -> None:
    """Apply each file of a patch, and hunk by hunk where the whole does not apply."""
    for path, section in _sections(step.pin.patch.raw_diff).items():
        if path not in state:
            continue
        if state[path] == step.pin.before[path]:
            state[path] = step.pin.after[path]
        else:
            state[path] = _apply(repo, step, path, section, state[path])
        step.strict[path] = state[path]


def _apply(repo: GitRepo, step: Step, path: str, section: bytes, blob: str) -> str:
    header, *hunks = re.split(rb"(?m)^(?=@@ -)", section)
    header = re.sub(rb"(?m)^index .*\n", b"", header)
    _stage(repo, path, blob)
    whole = repo.run("apply", "--cached", "-", stdin=header + b"".join(hunks), check=False)
    if whole.code != 0:
        step.strict_error[path] = whole.err.strip()
        for hunk in hunks:
            repo.run("apply", "--cached", "--recount", "-", stdin=header + hunk, check=False)
    return repo.run("ls-files", "-s", "-z", "--", path).items[0].split(" ")[1]


def _stage(repo: GitRepo, path: str, blob: str) -> None:
    repo.run("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")


def _sections(diff: bytes) -> dict[str, bytes]:
    """The part of a diff for each file; patches of a series have plain headers (rule P113)."""
    found = {}
    for section in re.split(rb"(?m)^(?=diff --git )", diff)[1:]:
        name = re.search(rb"(?m)^\+\+\+ b/(.*)$", section)
        if name:
            found[name[1].decode("utf-8", "surrogateescape").rstrip("\t")] = section
    return found


def _merge(repo: GitRepo, texts: Texts, step: Step, tree: str, places: Mapping[str, str]) -> str:
    """Merge one patch into ``tree`` as cherry-pick does; return the new tree."""
    ours = repo.run("commit-tree", tree, "-p", step.pin.parent, stdin=b"target\n").text
    result = repo.run("merge-tree", "--write-tree", "-z", ours, step.pin.commit, check=False)
    if result.code not in (0, 1) or not result.out:
        raise _too_old(result.err)
    merged = result.items[0]
    conflicts = {
        entry.split("\t", 1)[1]
        for entry in _until_empty(result.out.split(b"\0")[1:])
        if "\t" in entry
    }
    fixed: dict[str, str | None] = {}
    for path in step.pin.before:
        place = places[path]
        blob = repo.blobs(merged, [place]).get(place)
        if path not in step.start:
            fixed[place] = None
        elif blob is not None and place in conflicts:
            regions, kept = _resolve(texts, blob)
            step.regions[path] = regions
            step.merged[path] = fixed[place] = kept
        elif blob is not None:
            step.merged[path] = blob
    return _with(repo, merged, fixed) if fixed else merged


def _resolve(texts: Texts, blob: str) -> tuple[tuple[Region, ...], str]:
    """The conflicts in a merged file, and the file with upstream's side of each."""
    data = texts.data(blob)
    regions = tuple(
        Region(_lines(found["ours"]), _lines(found["theirs"])) for found in _REGION.finditer(data)
    )
    kept = _REGION.sub(lambda found: found["ours"], data)
    written = texts.repo.run("hash-object", "-w", "--no-filters", "--stdin", stdin=kept).text
    return regions, written


def _lines(data: bytes) -> tuple[str, ...]:
    return tuple(data.decode("utf-8", "replace").splitlines())


def _until_empty(parts: list[bytes]) -> Iterator[str]:
    for part in parts:
        if not part:
            return
        yield part.decode("utf-8", "surrogateescape")


def _with(repo: GitRepo, tree: str, blobs: Mapping[str, str | None]) -> str:
    """``tree`` with some files replaced, or left out where the blob is None."""
    with repo.scratch(keep_objects=True) as other:
        other.run("read-tree", tree)
        entries = "".join(
            f"100644 {blob}\t{path}\0" if blob else f"0 {'0' * 40}\t{path}\0"
            for path, blob in blobs.items()
        )
        other.run("update-index", "-z", "--index-info", stdin=entries.encode())
        return other.run("write-tree").text


def _too_old(err: str) -> ToolError | UpstreamError:
    if "usage:" in err or "unknown option" in err or "not a git command" in err:
        return ToolError(
            "this git cannot merge without a work tree (git merge-tree --write-tree)",
            evidence=err.splitlines()[:3],
            hint="install git 2.38 or newer",
        )
    return UpstreamError("git merge-tree failed", evidence=err.splitlines())
