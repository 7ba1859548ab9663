"""Contents of blobs and where a step added lines to them, each looked up once."""

import re
from dataclasses import dataclass, field

from swapmoe import port_scope
from swapmoe.gitrepo import GitRepo

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Line:
    """A line of a file. ``number`` counts from 1; ``after`` is the line of the old file that it
    follows, 0 at the top."""

    number: int
    after: int
    text: str
    scope: str


@dataclass(frozen=True)
class Change:
    """What a step did to a file: the lines it added (blank ones left out) and removed."""

    added: tuple[Line, ...]
    removed: tuple[str, ...]


@dataclass
class Texts:
    """Reads blobs of one repository."""

    repo: GitRepo
    _data: dict[str, bytes] = field(default_factory=dict)
    _changes: dict[tuple[str, str, str], Change] = field(default_factory=dict)

    def data(self, blob: str) -> bytes:
        """The content of a blob."""
        if blob not in self._data:
            self._data[blob] = self.repo.run("cat-file", "blob", blob).out
        return self._data[blob]

    def lines(self, blob: str) -> list[str]:
        """The content as text, one entry per line, without line feeds."""
        return self.data(blob).decode("utf-8", "replace").split("\n")

    def scopes(self, path: str, blob: str) -> tuple[str, ...]:
        """The scope of each line."""
        return port_scope.scopes(path, self.data(blob))

    def change(self, path: str, before: str, after: str) -> Change:
        """The difference between two blobs of the file ``path``."""
        key = (path, before, after)
        if key not in self._changes:
            self._changes[key] = self._compare(path, before, after)
        return self._changes[key]

    def _compare(self, path: str, before: str, after: str) -> Change:
        if before == after:
            return Change((), ())
        diff = self.repo.run(
            "diff", "-U0", "--no-ext-diff", "--no-textconv", "--text", before, after, check=False
        ).out.decode("utf-8", "replace")
        scopes = self.scopes(path, after)
        added: list[Line] = []
        removed: list[str] = []
        number = at = 0
        for line in diff.split("\n"):
            header = _HUNK.match(line)
            if header:
                at = int(header[1]) if header[2] == "0" else int(header[1]) - 1
                number = int(header[3])
            elif line.startswith("+") and number:
                if line[1:].strip():
                    added.append(Line(number, at, line[1:], scopes[number - 1]))
                number += 1
            elif line.startswith("-") and number:
                removed.append(line[1:])
        return Change(tuple(added), tuple(removed))
