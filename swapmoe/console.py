"""What the user sees: results on stdout, everything else on stderr.

rich is imported on first use, and its markup, emoji and highlighting stay off because paths and
compiler output contain square brackets and colons.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from swapmoe.errors import SwapmoeError

if TYPE_CHECKING:
    from rich.console import Console


@cache
def out() -> "Console":
    """The console for results (stdout)."""
    return _make_console(stderr=False)


@cache
def err() -> "Console":
    """The console for progress, notes and errors (stderr)."""
    return _make_console(stderr=True)


def _make_console(*, stderr: bool) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print one progress line."""
    err().print(text)


def note(text: str) -> None:
    """Print something the user should know but need not act on."""
    err().print(f"note: {text}")


def print_error(error: SwapmoeError) -> None:
    """Print what failed, the evidence indented, and the next command to type."""
    err().print(f"error: {error.message}")
    for fact in error.evidence:
        for line in fact.splitlines() or [""]:
            err().print(f"  {line}")
    if error.hint:
        err().print(f"hint: {error.hint}")


def emit_json(value: Any) -> None:
    """Write ``value`` as JSON to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def progress(
    description: str, total: int | None, unit: str = "bytes"
) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, two plain lines otherwise; yields ``set(completed)``.

    ``unit`` is "bytes" or "steps" and only decides how the counts are printed.
    """
    console = err()
    if not console.is_terminal:
        console.print(f"{description} ...")
        yield lambda _completed: None
        return
    from rich import progress as bars

    counts: bars.ProgressColumn = (
        bars.DownloadColumn() if unit == "bytes" else bars.MofNCompleteColumn()
    )
    columns = (bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), counts)
    with bars.Progress(*columns, bars.TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(description, total=total)
        yield lambda completed: bar.update(task, completed=completed)
