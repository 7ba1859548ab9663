"""Runs of several modes side by side: medians, ratios, and tables of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from swapmoe import paths

GB = 1e9


@dataclass(frozen=True)
class Run:
    """What one run showed; sizes in bytes, times in seconds, None = not known."""

    mode: str
    outcome: str
    wall: float
    user: float
    system: float
    read: int
    major_faults: int
    peak: int | None
    decode: float | None = None
    prompt: float | None = None
    engine: str = ""


def mid(values: Sequence[float | None], digits: int = 2) -> str:
    """Return the median of the known values as text, "-" when there are none."""
    known = [value for value in values if value is not None]
    return f"{median(known):.{digits}f}" if known else "-"


def table(runs: list[Run]) -> list[list[str]]:
    """Return rows of medians, one per mode, under a heading; the mode's worst outcome last."""
    rows = [["mode", "tok/s", "prompt", "user s", "sys s", "GB read", "peak GB", "outcome"]]
    for name in dict.fromkeys(run.mode for run in runs):
        own = [run for run in runs if run.mode == name]
        good = [run for run in own if run.outcome == "ok"]
        bad = [run.outcome for run in own if run.outcome != "ok"]
        rows.append(
            [
                name,
                mid([run.decode for run in good]),
                mid([run.prompt for run in good]),
                mid([run.user for run in good or own], 1),
                mid([run.system for run in good or own], 1),
                mid([run.read / GB for run in good or own]),
                mid([run.peak / GB if run.peak is not None else None for run in own]),
                f"{bad[0]} {len(bad)}/{len(own)}" if bad else f"ok {len(own)}/{len(own)}",
            ]
        )
    return rows


def ratios(
    runs: list[Run], reference: str, figure: Literal["decode", "prompt"] = "decode"
) -> list[str]:
    """Return one line per other mode: its figure against the reference's, round by round."""
    by_mode: dict[str, list[float | None]] = {}
    for run in runs:
        by_mode.setdefault(run.mode, []).append(getattr(run, figure))
    lines = []
    for name, rates in by_mode.items():
        found = ratio(rates, by_mode.get(reference, []))
        if name != reference and found:
            lines.append(f"{figure}: {name} / {reference}: {found}")
    return lines


def ratio(mine: Sequence[float | None], other: Sequence[float | None]) -> str:
    """Return the median and spread of a figure against another's, round by round; "" if none."""
    found = [a / b for a, b in zip(mine, other, strict=False) if a and b]
    if not found:
        return ""
    spread = f"{min(found):.3f} to {max(found):.3f} in {len(found)} rounds"
    return f"{median(found):.3f} ({spread})"


def as_text(rows: list[list[str]]) -> list[str]:
    """Return aligned lines of at most 80 columns for short mode names."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        " ".join(
            cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def as_markdown(name: str, facts: list[str], rows: list[list[str]], notes: list[str]) -> str:
    """Return a section of the measurements page."""
    lines = [*bullets(facts), "", *markdown_table(rows), "", *bullets(notes)]
    return "\n".join([f"<!-- begin {name} -->", *lines, f"<!-- end {name} -->"])


def bullets(lines: Sequence[str]) -> list[str]:
    """Return the lines of a Markdown list."""
    return [f"- {line}" for line in lines]


def markdown_table(rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table; the first row is its heading."""
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *body]


def put_section(path: Path, name: str, section: str) -> None:
    """Replace the section of that name in a page, or add it at the end."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    pattern = re.compile(f"<!-- begin {name} -->.*<!-- end {name} -->", re.DOTALL)
    new, count = pattern.subn(lambda _match: section, old)
    paths.atomic_write_text(path, new if count else f"{old.rstrip()}\n\n{section}\n".lstrip())
