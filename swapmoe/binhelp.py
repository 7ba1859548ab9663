"""What a llama.cpp program says about its options: its `--help`, parsed, kept, compared."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from swapmoe import paths, run
from swapmoe.errors import LaunchError, ToolError, UsageError
from swapmoe.flag_table import Row
from swapmoe.flags import Given
from swapmoe.run import shell_quote
from swapmoe.smoke import child_env

TIMEOUT_SECONDS = 60.0
PLAUSIBLE_OPTIONS = 20
"""A real help text lists far more; fewer means that it was not understood."""

_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)(,\s+|\s{2,}|\s|$)")


@dataclass(frozen=True)
class Help:
    """Option name -> whether a value follows it. Not `conclusive` = nothing can be told from it."""

    options: dict[str, bool]
    conclusive: bool

    def knows(self, name: str) -> bool:
        """Whether the program has this option; True when it is not known."""
        return name in self.options or not self.conclusive

    def takes_value(self, name: str) -> bool:
        """Whether a value follows this option; False when it is not known."""
        return self.options.get(name, False)


def parse(text: str) -> dict[str, bool]:
    """Every option of a help text, with whether it takes a value.

    An option's block starts in the first column with all its spellings, then its value after one
    space; whatever is indented is description, however much it looks like an option.
    """
    options: dict[str, bool] = {}
    for line in text.splitlines():
        names: list[str] = []
        at = 0
        separator = ", "
        while separator.startswith(",") and (match := _OPTION.match(line, at)):
            names.append(match[1])
            at, separator = match.end(), match[2]
        has_value = separator == " " and at < len(line)
        options.update(dict.fromkeys(names, has_value))
    return options


def probe(program: Path) -> Help:
    """The help of a program; kept in the cache until its path, size or time changes."""
    stat = program.stat()
    identity = f"{program}\0{stat.st_size}\0{stat.st_mtime_ns}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    known = paths.cache_dir() / "probes" / f"help-{digest}.json"
    try:
        options = json.loads(known.read_text(encoding="utf-8"))
        if isinstance(options, dict):
            return Help(options, conclusive=True)
    except (OSError, ValueError):
        pass
    try:
        done = run.capture([program, "--help"], env=child_env(), timeout=TIMEOUT_SECONDS)
    except (run.CommandFailed, ToolError):
        return Help({}, conclusive=False)
    options = parse(done.stdout or done.stderr)
    if len(options) < PLAUSIBLE_OPTIONS:
        return Help(options, conclusive=False)
    paths.atomic_write_text(known, json.dumps(options))
    return Help(options, conclusive=True)


def missing_options(found: Help, rows: Iterable[Row]) -> list[str]:
    """Rows the program has no option for; nothing when the help is inconclusive."""
    if not found.conclusive:
        return []
    absent = [
        row
        for row in rows
        if not found.options.keys() & {row.option, *(option for option, _ in row.fallbacks)}
    ]
    return [f"{row.option} (for {row.setting})" for row in absent]


def check(program: Path, rows: Iterable[Row]) -> Help:
    """The program's help. Raises `LaunchError` when it lacks an option of these rows."""
    found = probe(program)
    if absent := missing_options(found, rows):
        raise LaunchError(
            f"{program.name} does not know {len(absent)} of the options swapmoe uses",
            evidence=[f"not in its --help: {', '.join(absent)}", f"program: {program}"],
            hint="swapmoe build --force",
        )
    return found


def check_known(found: Help, given: Iterable[Given], program: Path) -> None:
    """Raises `UsageError` for options that the program would end for, with the nearest it has."""
    problems = []
    for option in given:
        if not found.knows(option.name):
            near = difflib.get_close_matches(option.name, found.options, n=1)
            problems.append(option.name + (f"; did you mean {near[0]}?" if near else ""))
    if problems:
        raise UsageError(
            f"{program.name} does not know {len(problems)} of the arguments after --",
            evidence=problems,
            hint=f"{shell_quote([program])} --help",
        )
