"""PORTING.md: what a port changed, hook by hook; the lines written by hand survive a rewrite."""

import re
from collections.abc import Iterator
from pathlib import Path

from swapmoe.paths import atomic_write_text
from swapmoe.port_hooks import Hook
from swapmoe.port_report import Report

NAME = "PORTING.md"
UNWRITTEN = "Not explained yet: say what was done and why."
_SECTION = re.compile(r"(?ms)^### (.+?)\n\n(.+?)\n\n(.*?)(?=^##|\Z)")


def write(folder: Path, report: Report, new_tag: str, range_diff: str) -> list[str]:
    """Write the notes of the series in ``folder``; return hooks that nobody explained yet."""
    file = folder / NAME
    old = file.read_text(encoding="utf-8") if file.is_file() else ""
    kept = {title: text.strip() for title, _, text in _SECTION.findall(old)}
    text = "\n".join(_lines(report, new_tag, kept, range_diff)) + "\n"
    atomic_write_text(file, text)
    titles = [_title(hook) for hook in report.drifted]
    return [title for title in titles if kept.get(title, UNWRITTEN) == UNWRITTEN]


def _title(hook: Hook) -> str:
    return f"{hook.file} {hook.hunk}: {hook.function}"


def _lines(report: Report, new_tag: str, kept: dict[str, str], range_diff: str) -> Iterator[str]:
    counts = ", ".join(f"{number} {verdict}" for verdict, number in report.counts.items())
    yield f"# Port from {report.pin} to {new_tag}"
    yield ""
    yield f"Hooks, as `swapmoe port check` saw them before the port: {counts}."
    yield ""
    yield "## Hooks that needed a look"
    for hook in report.drifted:
        yield f"\n### {_title(hook)}\n"
        yield f"{hook.verdict}{f': {hook.why}' if hook.why else ''}\n"
        yield kept.get(_title(hook), UNWRITTEN)
    yield ""
    yield "## Old and new series compared (git range-diff)"
    yield ""
    yield "~~~~text"
    yield range_diff
    yield "~~~~"
