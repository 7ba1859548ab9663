"""What a port check found, for people, for CI and for programs."""

import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from xml.etree import ElementTree

from swapmoe import port_hooks
from swapmoe.port_hooks import Hook
from swapmoe.port_target import Target

_WIDTH = 80
_COMMITS = 20


@dataclass(frozen=True)
class Report:
    """All verdicts. ``problems`` concern the target as a whole, ``notes`` need no action.

    ``equivalents`` names what upstream has by now that may replace hooks; ``commits`` are
    upstream's in the files of drifted hooks, known only where the target comes from a clone.
    """

    pin: str
    target: Target
    hooks: tuple[Hook, ...]
    problems: tuple[str, ...] = ()
    equivalents: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How often each verdict was given."""
        found = Counter(hook.verdict for hook in self.hooks)
        return {verdict: found[verdict] for verdict in port_hooks.VERDICTS if found[verdict]}

    @property
    def drifted(self) -> tuple[Hook, ...]:
        """Hooks a person has to look at."""
        return tuple(hook for hook in self.hooks if hook.verdict not in port_hooks.CLEAN)

    @property
    def clean(self) -> bool:
        """Whether the series can be taken over as it is."""
        return not self.drifted and not self.problems


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "pin": report.pin,
        "target": asdict(report.target),
        "clean": report.clean,
        "counts": report.counts,
        "problems": list(report.problems),
        "equivalents": list(report.equivalents),
        "notes": list(report.notes),
        "commits": list(report.commits),
        "hooks": [asdict(hook) for hook in report.hooks],
    }


def lines(report: Report) -> Iterator[str]:
    """The report as text, at most 80 columns wide."""
    counts = ", ".join(f"{number} {verdict}" for verdict, number in report.counts.items())
    yield f"{report.pin} -> {report.target.name}: {counts}"
    for problem in report.problems:
        yield f"  {problem}"
    for note in report.notes:
        yield from textwrap.wrap(note, _WIDTH, initial_indent="  note: ", subsequent_indent="    ")
    patch = ""
    for hook in report.hooks:
        if hook.verdict == "unchanged":
            continue
        if hook.patch != patch:
            patch = hook.patch
            yield patch
        yield from _hook_lines(hook)
    if report.commits:
        yield f"upstream commits in these files: {len(report.commits)}"
        yield from (_cut(f"  {commit}") for commit in report.commits[:_COMMITS])


def _hook_lines(hook: Hook) -> Iterator[str]:
    number = f":{hook.line}" if hook.line else ""
    yield _cut(f"  {hook.verdict:<10} {hook.landed_file or hook.file}{number}")
    place = hook.function
    if hook.landed not in (None, hook.function):
        place = f"{hook.function} -> {hook.landed}"
    yield _cut(f"             {place}{f' ({hook.moved:+d} lines)' if hook.moved else ''}")
    if hook.why:
        yield f"             {hook.why}"
    for name, text in (("upstream", hook.upstream), ("ours", hook.ours)):
        for line in text:
            yield _cut(f"             {name:>8} | {line}")


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def annotations(report: Report) -> Iterator[str]:
    """Workflow commands of GitHub Actions, one for each hook a person has to look at."""
    for problem in report.problems:
        yield f"::error title=port to {_escape(report.target.name, True)}::{_escape(problem)}"
    for hook in report.drifted:
        level = "warning" if hook.verdict in ("merged", "upstreamed") else "error"
        file = _escape(f"patches/{report.pin}/{hook.patch}", True)
        title = _escape(f"{hook.verdict}: {hook.file} on {report.target.name}", True)
        place = f" (lands in {hook.landed})" if hook.landed else ""
        text = _escape(f"{hook.function}{place}: {hook.why or hook.verdict}")
        yield f"::{level} file={file},title={title}::{text}"


def _escape(text: str, is_property: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if is_property else text


def junit(report: Report) -> bytes:
    """The report as JUnit XML: a test case per hook, a failure where a person has to look."""
    bad = len(report.drifted) + len(report.problems)
    suite = ElementTree.Element(
        "testsuite",
        name=f"port {report.pin} to {report.target.name}",
        tests=str(len(report.hooks) + len(report.problems)),
        failures=str(bad),
    )
    for problem in report.problems:
        case = ElementTree.SubElement(suite, "testcase", classname="target", name=problem)
        ElementTree.SubElement(case, "failure", message=problem)
    for hook in report.hooks:
        name = f"{hook.file} {hook.hunk}: {hook.function}"
        case = ElementTree.SubElement(suite, "testcase", classname=hook.patch, name=name)
        if hook.verdict not in port_hooks.CLEAN:
            message = f"{hook.verdict}: {hook.why}" if hook.why else hook.verdict
            failure = ElementTree.SubElement(case, "failure", message=message, type=hook.verdict)
            failure.text = "\n".join(_hook_lines(hook))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"
