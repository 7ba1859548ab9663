"""The verdict on each hook: one hunk of a patch, its function at the pin and on the target."""

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from swapmoe.port_pick import PinStep, Region, Step
from swapmoe.port_scope import FILE_SCOPE
from swapmoe.port_text import Line, Texts
from swapmoe.series import Patch

Verdict = Literal["unchanged", "offset", "merged", "conflict", "gone", "upstreamed", "broken"]
VERDICTS: tuple[Verdict, ...] = (
    "unchanged", "offset", "merged", "conflict", "gone", "upstreamed", "broken",
)  # fmt: skip
CLEAN = ("unchanged", "offset")
_HEAD_LINES = 4


@dataclass(frozen=True)
class Hook:
    """One hunk on one target.

    ``function`` is where the hunk is at the pin, ``landed`` where it is on the target, ``line``
    its first line there. ``upstream`` and ``ours`` are the heads of both texts of a conflict.
    """

    patch: str
    file: str
    hunk: int
    function: str
    verdict: Verdict
    why: str = ""
    landed_file: str | None = None
    landed: str | None = None
    line: int | None = None
    moved: int = 0
    upstream: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, int]:
        """What stays the same from target to target."""
        return self.patch, self.file, self.hunk


def judge(texts: Texts, step: Step, path: str, place: str | None) -> list[Hook]:
    """The verdicts on one file of one patch. ``place`` is the target's path, None when gone."""
    hunks = _pin_hunks(texts, step.pin, path)
    if place is None or path not in step.start:
        return [replace(hunk.hook, verdict="gone", why="the file is gone") for hunk in hunks]
    if step.start[path] == step.pin.before[path]:
        return [
            replace(
                hunk.hook,
                landed_file=place,
                landed=hunk.hook.function,
                line=hunk.lines[0].number if hunk.lines else None,
            )
            for hunk in hunks
        ]
    return _File(texts, step, path, place, hunks).verdicts()


def unnamed(texts: Texts, pin: PinStep) -> list[Hook]:
    """Hooks of a patch whose function is in none of its ``Hook:`` trailers."""
    return [
        hunk.hook
        for path in pin.before
        for hunk in _pin_hunks(texts, pin, path)
        if hunk.hook.function != FILE_SCOPE and not _is_named(pin.patch, hunk.hook)
    ]


def _is_named(patch: Patch, hook: Hook) -> bool:
    for value in patch.trailer("Hook"):
        path, _, function = value.replace(": ", " ", 1).partition(" ")
        last = re.escape(function.removesuffix("()").rsplit("::", 1)[-1].rsplit("(", 1)[-1])
        if path == hook.file and last and re.search(rf"(?<!\w){last}(?!\w)", hook.function):
            return True
    return False


@dataclass(frozen=True)
class _Hunk:
    """A hunk and the lines it adds at the pin."""

    hook: Hook
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class _Landing:
    """The lines of a hunk in a result; ``right`` when each is in its function of the pin."""

    lines: tuple[Line, ...]
    right: bool

    @property
    def where(self) -> str:
        """The functions it is in."""
        return ", ".join(dict.fromkeys(line.scope for line in self.lines))

    @property
    def place(self) -> tuple[int, ...]:
        """The lines of the target that its lines follow."""
        return tuple(line.after for line in self.lines)


def _pin_hunks(texts: Texts, pin: PinStep, path: str) -> list[_Hunk]:
    change = next(change for change in pin.patch.changes if change.path == path)
    left = list(texts.change(path, pin.before[path], pin.after[path]).added)
    found = []
    for number, hunk in enumerate(change.hunks, 1):
        count = sum(bool(text.strip()) for text in hunk.added)
        lines = tuple(left[:count])
        del left[:count]
        function = next((line.scope for line in lines if line.scope != FILE_SCOPE), FILE_SCOPE)
        found.append(_Hunk(Hook(pin.patch.name, path, number, function, "unchanged"), lines))
    return found


@dataclass(frozen=True)
class _File:
    """One changed file of one patch."""

    texts: Texts
    step: Step
    path: str
    place: str
    hunks: list[_Hunk]

    def verdicts(self) -> list[Hook]:
        """One for each hunk."""
        step, path = self.step, self.path
        merged = self._find(step.start[path], step.merged[path])
        strict: list[_Landing | None] = [None] * len(self.hunks)
        if path in step.strict:
            strict = self._find(step.strict_start[path], step.strict[path])
        lost = self._lost()
        return [
            self._landed(hunk, into, by_strict, lost) if into else self._missing(hunk, by_strict)
            for hunk, into, by_strict in zip(self.hunks, merged, strict, strict=True)
        ]

    def _find(self, before: str, after: str) -> list[_Landing | None]:
        """Where each hunk is in a result; None when it is not whole there."""
        left = list(self.texts.change(self.place, before, after).added)
        found: list[_Landing | None] = []
        for hunk in self.hunks:
            taken: list[Line] = []
            for line in hunk.lines:
                same = [other for other in left if other.text.rstrip("\r") == line.text]
                best = next((other for other in same if other.scope == line.scope), None)
                best = best or next(iter(same), None)
                if best is not None:
                    left.remove(best)
                    taken.append(best)
            right = all(a.scope == b.scope for a, b in zip(taken, hunk.lines, strict=False))
            whole = len(taken) == len(hunk.lines)
            found.append(_Landing(tuple(taken), right) if whole else None)
        return found

    def _landed(self, hunk: _Hunk, merged: _Landing, strict: _Landing | None, lost: str) -> Hook:
        """A hunk that the merge took."""
        hook = replace(hunk.hook, landed_file=self.place, landed=merged.where or hunk.hook.function)
        if merged.lines:
            line = merged.lines[0].number
            hook = replace(hook, line=line, moved=line - hunk.lines[0].number)
        if lost:
            return replace(hook, verdict="conflict", why=lost)
        if not merged.right:
            if hook.function in self._scopes():
                return replace(hook, verdict="conflict", why=f"lands in {merged.where}")
            why = f"the function is gone; the text would land in {merged.where}"
            return replace(hook, verdict="gone", why=why)
        why = ""
        if self.place != self.path:
            why = f"the file is {self.place} now"
        elif strict is None:
            why = "the lines around it changed"
        elif not strict.right:
            why = f"a strict apply would put it in {strict.where}"
        elif strict.place != merged.place:
            why = "a strict apply would put it in another place"
        return replace(hook, verdict="merged" if why else "offset", why=why)

    def _missing(self, hunk: _Hunk, strict: _Landing | None) -> Hook:
        """A hunk that the merge did not take."""
        hook = replace(hunk.hook, landed_file=self.place)
        if self._present(hunk):
            return replace(hook, verdict="upstreamed", landed=hook.function)
        region, start = self._region(hunk)
        ours = region.theirs[start : start + _HEAD_LINES]
        hook = replace(hook, upstream=region.ours[:_HEAD_LINES], ours=ours)
        if hook.function != FILE_SCOPE and hook.function not in self._scopes():
            return replace(hook, verdict="gone", why="the function is gone")
        why = self._reason(region)
        if strict is not None and strict.lines:
            why += f"; a strict apply would put it in {strict.where}"
        return replace(hook, verdict="conflict", why=why)

    def _region(self, hunk: _Hunk) -> tuple[Region, int]:
        """The conflict that holds the hunk, and the line before the hunk's first one in it."""
        wanted = {line.text for line in hunk.lines}
        for region in self.step.regions.get(self.path, ()):
            for number, text in enumerate(region.theirs):
                if text.rstrip("\r") in wanted:
                    return region, max(0, number - 1)
        return Region((), ()), 0

    def _reason(self, region: Region) -> str:
        step, path = self.step, self.path
        then, now = (self.texts.data(b) for b in (step.pin.before[path], step.start[path]))
        if b"\r" in now and b"\r" not in then:
            return "upstream's file has CRLF line endings now"
        upstream = ["".join(line.split()) for line in region.ours]
        rest = iter("".join(line.split()) for line in region.theirs)
        if upstream and all(any(line == other for other in rest) for line in upstream):
            return "upstream changed only blanks here"
        return "upstream changed the same place"

    def _scopes(self) -> tuple[str, ...]:
        return self.texts.scopes(self.place, self.step.start[self.path])

    def _present(self, hunk: _Hunk) -> bool:
        """Whether upstream has the added lines, each in its function, and did not before."""
        step, path = self.step, self.path
        now = self._count(self.place, step.start[path])
        now.subtract(self._count(path, step.pin.before[path]))
        wanted = Counter((line.text.strip(), line.scope) for line in hunk.lines)
        return bool(wanted) and all(now[key] >= number for key, number in wanted.items())

    def _count(self, path: str, blob: str) -> Counter[tuple[str, str]]:
        pairs = zip(self.texts.lines(blob), self.texts.scopes(path, blob), strict=True)
        return Counter((text.strip(), scope) for text, scope in pairs)

    def _lost(self) -> str:
        """Upstream lines that the merge removes and the patch does not."""
        pin, step, path = self.step.pin, self.step, self.path
        wanted = Counter(self.texts.change(path, pin.before[path], pin.after[path]).removed)
        here = Counter(self.texts.change(self.place, step.start[path], step.merged[path]).removed)
        extra = list((here - wanted).elements())
        shown = extra[0].strip()[:60] if extra else ""
        return f"would delete {len(extra)} upstream lines: {shown}" if extra else ""
