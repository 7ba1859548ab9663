"""Reading git diffs: real paths, kinds and counts. Applying is git's job.

Headers are read here because unidiff keeps quoted names and foreign prefixes and takes copies
for renames; unidiff reads the hunks.
"""

import re
from dataclasses import dataclass
from functools import cached_property

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from swapmoe.errors import SeriesError

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_PREFIXES = frozenset("abciow12")


@dataclass(frozen=True)
class Hunk:
    """One hunk: the function git printed beside ``@@``, and its lines without markers."""

    function: str
    context: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True)
class FileChange:
    """What a diff does to one file; ``kind`` is modify, add, delete, rename, copy or mode."""

    path: str
    old_path: str
    kind: str
    hunks: tuple[Hunk, ...]
    blob_ids: tuple[str, str] | None
    binary: bool

    @cached_property
    def added(self) -> int:
        """Number of added lines."""
        return sum(len(hunk.added) for hunk in self.hunks)

    @cached_property
    def removed(self) -> int:
        """Number of removed lines."""
        return sum(len(hunk.removed) for hunk in self.hunks)


def parse(text: str) -> tuple[FileChange, ...]:
    """Read every file of a git diff; text before the first ``diff --git`` is skipped.

    Raises SeriesError naming the file for a form that is not understood.
    """
    sections = re.split(r"(?m)^(?=diff --git )", text)[1:]
    if not sections:
        raise SeriesError(
            "no git diff found", evidence=["expected a line 'diff --git a/... b/...'"]
        )
    return tuple(_parse_section(section) for section in sections)


def _parse_section(section: str) -> FileChange:
    header, mark, rest = section.partition("\n@@ ")
    lines = header.split("\n")
    facts = {}
    for key in ("rename from", "rename to", "copy from", "copy to", "---", "+++", "index"):
        value = next(
            (line[len(key) + 1 :] for line in lines[1:] if line.startswith(key + " ")), None
        )
        if value is not None:
            facts[key] = value
    old, new = _paths(lines[0], facts)
    index = re.match(r"([0-9a-f]+)\.\.([0-9a-f]+)", facts.get("index", ""))
    return FileChange(
        path=new if new is not None else str(old),
        old_path=old if old is not None else str(new),
        kind=_kind(lines, facts, hunks=bool(mark)),
        hunks=_hunks(f"@@ {rest}", lines[0]) if mark else (),
        blob_ids=(index[1], index[2]) if index else None,
        binary=any(line.startswith(("GIT binary patch", "Binary files ")) for line in lines),
    )


def _kind(lines: list[str], facts: dict[str, str], *, hunks: bool) -> str:
    if "rename from" in facts:
        return "rename"
    if "copy from" in facts:
        return "copy"
    if any(line.startswith("new file mode") for line in lines):
        return "add"
    if any(line.startswith("deleted file mode") for line in lines):
        return "delete"
    mode_changed = any(line.startswith("new mode") for line in lines)
    return "mode" if mode_changed and not hunks else "modify"


def _paths(first: str, facts: dict[str, str]) -> tuple[str | None, str | None]:
    for verb in ("rename", "copy"):
        if f"{verb} from" in facts:
            return unquote(facts[f"{verb} from"]), unquote(facts[f"{verb} to"])
    if "---" in facts and "+++" in facts:
        return _strip(facts["---"], first), _strip(facts["+++"], first)
    names = first.removeprefix("diff --git ")
    for split in [at for at, char in enumerate(names) if char == " "]:
        left, right = names[:split], names[split + 1 :]
        if _without_prefix(left) == _without_prefix(right) is not None:
            path = _strip(left, first)
            return path, path
    raise _refused(first, "old and new name differ without a rename header")


def _strip(name: str, where: str) -> str | None:
    if name.rstrip("\t") == "/dev/null":
        return None
    path = _without_prefix(name)
    if path is None:
        raise _refused(
            where,
            f"{name} has no a/ or b/ prefix; make the diff with git -c diff.noprefix=false",
        )
    return path


def _without_prefix(name: str) -> str | None:
    path = unquote(name.rstrip("\t"))
    return path[2:] if len(path) > 2 and path[1] == "/" and path[0] in _PREFIXES else None


def unquote(name: str) -> str:
    """Undo git's C-style quoting of a path."""
    quoted = _QUOTED.fullmatch(name)
    if not quoted:
        return name
    raw = bytearray()
    body = quoted[1]
    at = 0
    while at < len(body):
        if body[at] != "\\":
            raw += body[at].encode()
            at += 1
        elif body[at + 1] in _ESCAPES:
            raw.append(_ESCAPES[body[at + 1]])
            at += 2
        else:
            raw.append(int(body[at + 1 : at + 4], 8))
            at += 4
    return raw.decode("utf-8", "surrogateescape")


def _hunks(body: str, where: str) -> tuple[Hunk, ...]:
    try:
        files = PatchSet.from_string(f"--- a/file\n+++ b/file\n{body}")
    except UnidiffParseError as error:
        raise _refused(where, str(error)) from error
    return tuple(
        Hunk(
            function=hunk.section_header,
            context=tuple(line.value.rstrip("\n") for line in hunk if line.is_context),
            added=tuple(line.value.rstrip("\n") for line in hunk if line.is_added),
            removed=tuple(line.value.rstrip("\n") for line in hunk if line.is_removed),
        )
        for hunk in files[0]
    )


def _refused(where: str, reason: str) -> SeriesError:
    return SeriesError("diff not understood", evidence=[where, reason])
