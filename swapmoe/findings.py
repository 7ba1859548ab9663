"""What `swapmoe doctor` found: rows with a verdict, as text of 80 columns and as JSON."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

WIDTH = 80
_NAME_WIDTH = 14
_INDENT = " " * (8 + _NAME_WIDTH)

_LABELS = {"missing": "lacks"}

Status = Literal["ok", "note", "warn", "missing", "bad"]


@dataclass(frozen=True)
class Finding:
    """One row; it goes on with the one before when it has no name.

    A warning never refuses anything; `hint` is what to type or do about it.
    """

    status: Status
    name: str
    text: str
    hint: str = ""


Sections = Mapping[str, Sequence[Finding]]


def lines(sections: Sections) -> Iterator[str]:
    """The report for people. Words longer than a line and commands to type stay whole."""
    for title, found in sections.items():
        yield title
        for row in found:
            label = _LABELS.get(row.status, row.status) if row.name else ""
            first = f"  {label:<5} {row.name:<{_NAME_WIDTH}}"
            yield from _wrapped(row.text, first)
            if row.hint:
                yield f"{_INDENT}> {row.hint}"
        yield ""


def _wrapped(text: str, first: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


def to_json(sections: Sections) -> dict[str, list[dict[str, str]]]:
    """The report for machines."""
    return {title.lower(): [asdict(row) for row in found] for title, found in sections.items()}


def has(sections: Sections, *status: Status) -> bool:
    """Whether any row has one of these verdicts."""
    return any(row.status in status for row in _rows(sections))


def _rows(sections: Sections) -> Iterable[Finding]:
    return (row for found in sections.values() for row in found)


def gib(size: float) -> str:
    """A size in bytes for people."""
    if size < 2**20:
        return f"{size:,.0f} bytes"
    return f"{size / 2**30:,.1f} GiB" if size >= 2**29 else f"{size / 2**20:,.1f} MiB"
