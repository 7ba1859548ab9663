"""The rules of a patch series. Each finding has an id; patches/README.md says why each exists."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swapmoe import compose, pins, series
from swapmoe.diffs import FileChange
from swapmoe.errors import ApplyError, SeriesError
from swapmoe.gitrepo import GitRepo
from swapmoe.series import OverlayFile, Patch, Series

MAX_ADDED = 10
TRAILERS = ("Hook", "Off-by-default", "Test", "Upstream-Status")
AREAS = (
    "args", "bench", "build", "common", "context", "cpu", "graph", "loader", "model",
    "server", "tests", "tools",
)  # fmt: skip
_STATUS = ("Inappropriate", "Pending", "Submitted", "Backport", "Denied")
_KNOWN_FILES = ("PORTING.md", series.SERIES, pins.MANIFEST)
_NAME = re.compile(r"([a-z]+)-[a-z][a-z0-9-]*\.patch")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_FULL_ID = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Finding:
    """One broken rule."""

    rule: str
    where: str
    text: str


@dataclass(frozen=True)
class Report:
    """All findings, and hook lines (added, removed) per upstream file."""

    findings: tuple[Finding, ...]
    hooks: dict[str, tuple[int, int]]

    @property
    def added(self) -> int:
        """Lines added to upstream files."""
        return sum(added for added, _ in self.hooks.values())

    @property
    def removed(self) -> int:
        """Lines removed from upstream files."""
        return sum(removed for _, removed in self.hooks.values())


def lint(folder: Path, repo: GitRepo | None = None, base: str | None = None) -> Report:
    """Check the series in ``folder``.

    With a repository and the pin's commit in it, the manifest is recomputed as well; without,
    it is only compared with the files of the folder.
    """
    findings: list[Finding] = []
    patches = _readable(folder, findings)
    for patch in patches:
        findings += _check_patch(patch)
    findings += _check_budget(patches)
    overlay: tuple[OverlayFile, ...] = ()
    try:
        overlay = series.read_overlay(folder)
    except SeriesError as error:
        findings += [
            Finding("P111", series.OVERLAY, f"{error.message}: {line}") for line in error.evidence
        ]
    for file in overlay:
        findings += _check_overlay(file, patches)
    if not any(finding.rule in ("P101", "P103", "P113") for finding in findings):
        whole = Series(folder, overlay, tuple(patches))
        findings += _check_manifest(whole, repo, base)
    return Report(tuple(findings), _hook_lines(patches))


def _readable(folder: Path, findings: list[Finding]) -> list[Patch]:
    """The listed patches that can be read and parsed; the rest become findings."""
    try:
        names = series.read_names(folder)
    except SeriesError as error:
        findings.append(Finding("P101", series.SERIES, error.evidence[0]))
        return []
    for name in sorted({name for name in names if names.count(name) > 1}):
        findings.append(Finding("P103", name, "is listed more than once"))
    for path in sorted(folder.iterdir()):
        listed = path.name in names or path.name in _KNOWN_FILES or path.name == series.OVERLAY
        if not listed:
            findings.append(Finding("P102", path.name, f"is not in {series.SERIES}"))
    patches = []
    for name in dict.fromkeys(names):
        if not (folder / name).is_file() or Path(name).name != name:
            findings.append(Finding("P101", name, "is listed but not in the folder"))
            continue
        patch = series.read_patch(folder / name)
        try:
            _ = patch.changes
        except SeriesError as error:
            findings.append(Finding("P113", name, "; ".join(error.evidence)))
            continue
        patches.append(patch)
    return patches


def _check_patch(patch: Patch) -> Iterator[Finding]:
    def found(rule: str, text: str) -> Finding:
        return Finding(rule, patch.name, text)

    name = _NAME.fullmatch(patch.name)
    if not name or name[1] not in AREAS:
        areas = ", ".join(AREAS)
        yield found("P104", f"name must be <area>-<what>.patch, unnumbered; areas: {areas}")
    if not (patch.data.startswith(b"From ") and all(patch.author) and patch.date):
        yield found("P105", "needs the mail header of git format-patch: From, From:, Date:")
    area = name[1] if name else "<area>"
    if not re.fullmatch(rf"swapmoe: {re.escape(area)}: \S.*", patch.subject):
        yield found("P106", f"subject must be 'swapmoe: {area}: <what>', is {patch.subject!r}")
    paragraphs = [part for part in re.split(r"\n\s*\n", patch.body) if part.strip()]
    if len(paragraphs) - bool(patch.trailers) < 1:
        yield found(
            "P114", "needs a paragraph: why upstream is touched, what would let us delete it"
        )
    for key in TRAILERS:
        if not any(patch.trailer(key)):
            yield found("P115", f"trailer missing or empty: {key}:")
    for value in patch.trailer("Upstream-Status"):
        if value and value.split()[0] not in _STATUS:
            yield found("P115", f"Upstream-Status must begin with one of {', '.join(_STATUS)}")
    yield from _check_hooks(patch)
    for change in patch.changes:
        yield from (found(rule, text) for rule, text in _check_change(change))
    if patch.had_crlf:
        yield found("P113", "has CRLF line endings")
    if re.search(r"(?m)^-- $", patch.diff):
        yield found("P113", "has a mail signature; export with --no-signature")


def _check_hooks(patch: Patch) -> Iterator[Finding]:
    files = {change.path: change for change in patch.changes}
    hooked = set()
    for value in patch.trailer("Hook"):
        path, _, function = value.replace(": ", " ", 1).partition(" ")
        path, function = path.rstrip(":"), function.strip().removesuffix("()")
        hooked.add(path)
        if path not in files:
            yield Finding("P109", patch.name, f"Hook names {path}, which the diff does not touch")
        elif not function:
            yield Finding("P109", patch.name, f"Hook names no function of {path}")
        elif not _mentions(files[path], function):
            yield Finding(
                "P109", patch.name, f"no hunk of {path} has {function!r} in its header or context"
            )
    for path in sorted(set(files) - hooked):
        yield Finding("P109", patch.name, f"no Hook trailer for {path}")


def _mentions(change: FileChange, function: str) -> bool:
    last = function.rsplit("::", 1)[-1]
    word = re.compile(rf"(?<!\w){re.escape(last)}(?!\w)")
    return any(
        word.search(text) for hunk in change.hunks for text in (hunk.function, *hunk.context)
    )


def _check_change(change: FileChange) -> Iterator[tuple[str, str]]:
    if change.path.startswith("src/models/"):
        yield "P110", f"touches {change.path}; model graphs are never patched"
    if change.kind != "modify" or change.binary:
        kind = "binary" if change.binary else change.kind
        yield "P113", f"{change.path}: {kind} is not allowed; patches only insert text"
    if change.blob_ids and not all(_FULL_ID.fullmatch(blob) for blob in change.blob_ids):
        yield "P113", f"{change.path}: abbreviated blob ids; export with --full-index"
    if change.kind == "modify" and change.blob_ids is None:
        yield "P113", f"{change.path}: no index line; export with git format-patch --full-index"


def _hook_lines(patches: list[Patch]) -> dict[str, tuple[int, int]]:
    total: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for patch in patches:
        for change in patch.changes:
            added, removed = total[change.path]
            total[change.path] = added + change.added, removed + change.removed
    return dict(sorted(total.items()))


def _check_budget(patches: list[Patch]) -> Iterator[Finding]:
    for path, (added, removed) in _hook_lines(patches).items():
        touching = [p for p in patches if any(change.path == path for change in p.changes)]
        if any(any(patch.trailer("Hook-Budget")) for patch in touching):
            continue
        names = ", ".join(patch.name for patch in touching)
        if removed:
            text = f"{removed} lines removed from {path}, no Hook-Budget: reason"
            yield Finding("P107", names, text)
        if added > MAX_ADDED:
            text = f"{added} lines added to {path} (budget {MAX_ADDED}), no Hook-Budget: reason"
            yield Finding("P107", names, text)


def _check_overlay(file: OverlayFile, patches: list[Patch]) -> Iterator[Finding]:
    where = f"overlay/{file.path}"
    try:
        text = file.data.decode("utf-8")
    except UnicodeDecodeError as error:
        yield Finding("P111", where, f"is not UTF-8 text: {error}")
        return
    if "\r" in text:
        yield Finding("P111", where, "has CR line endings")
    if text and not text.endswith("\n"):
        yield Finding("P111", where, "does not end with a newline")
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in line:
            yield Finding("P111", f"{where}:{number}", "has a tab")
        if not _STRING.sub("", line).isascii():
            yield Finding("P111", f"{where}:{number}", "has a non-ASCII character outside a string")
    if file.path.startswith("src/models/"):
        yield Finding("P110", where, "model graphs are never patched")
    for patch in patches:
        if any(file.path in (change.path, change.old_path) for change in patch.changes):
            yield Finding("P112", patch.name, f"patches {where}; edit the overlay file instead")


def _check_manifest(whole: Series, repo: GitRepo | None, base: str | None) -> Iterator[Finding]:
    try:
        recorded = pins.read_manifest(whole.folder)
    except SeriesError as error:
        yield from (Finding("P108", pins.MANIFEST, problem) for problem in error.evidence)
        return
    known = {file.path for file in recorded.file if file.before}
    for file in whole.overlay:
        if file.path in known:
            yield Finding("P112", f"overlay/{file.path}", "exists upstream")
    drift = compose.folder_drift(recorded, whole)
    yield from (Finding("P108", pins.MANIFEST, line) for line in drift)
    if drift or repo is None or base is None:
        return
    try:
        with repo.scratch() as scratch:
            done = compose.compose(scratch, base, whole)
            fresh = compose.make_manifest(scratch, recorded.upstream, whole, done)
    except ApplyError as error:
        rule = "P112" if "exist upstream" in error.message else "P116"
        yield Finding(rule, error.message, "; ".join(error.evidence))
        return
    for name in ("upstream", "series", "overlay", "patch", "file"):
        if getattr(fresh, name) != getattr(recorded, name):
            yield Finding("P108", pins.MANIFEST, f"[{name}] is not what the series gives now")
