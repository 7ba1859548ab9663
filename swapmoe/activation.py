"""Did the engine do what it was asked? The lines it must have logged, and their absence."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from swapmoe import sizes
from swapmoe.config import RunSettings
from swapmoe.errors import LaunchError
from swapmoe.gguf_info import ModelFacts

ENABLED = (
    "expert streaming enabled \N{EM DASH} skipping initial mmap prefetch for routed expert tensors"
)
ENDS_AT_ONCE = {
    *("-h", "--help", "--usage", "--version", "-cl", "--cache-list", "--completion-bash"),
    "--list-devices",
}
"""With one of these a program prints something and ends without a model."""

_TRACKING = re.compile(r"expert_stream: tracking (\d+) routed expert slices")
_REPACKED = re.compile(r"CPU_REPACK model buffer size =\s*([\d.]+) MiB")
_LINES_SHOWN = 12


@dataclass(frozen=True)
class Expected:
    """Lines that must appear (pattern, text, what asked for it); slice counts that are right.

    `resident_bytes` is the most that may be repacked; None = unknown, with a second model loaded.
    """

    lines: tuple[tuple[re.Pattern[str], str, str], ...]
    slices: frozenset[int]
    resident_bytes: int | None

    def missing(self, log: str) -> list[str]:
        """What the log lacks, or says wrongly; empty when everything asked for is active."""
        found = [
            f"no line for {asked_by}: {text}"
            for pattern, text, asked_by in self.lines
            if not pattern.search(log)
        ]
        tracked = [int(count) for count in _TRACKING.findall(log)]
        wanted = " or ".join(f"{count}" for count in sorted(self.slices, reverse=True))
        if not tracked:
            found.append(
                f"no line for streaming: expert_stream: tracking {wanted} routed expert slices"
            )
        elif not self.slices & set(tracked):
            found.append(f"the engine tracks {tracked[0]} slices, the model's header has {wanted}")
        repacked = sum(float(size) for size in _REPACKED.findall(log)) * sizes.MIB
        if self.resident_bytes is not None and repacked > self.resident_bytes + sizes.MIB:
            found.append(
                f"{repacked:,.0f} bytes were repacked, more than the {self.resident_bytes:,} "
                "bytes of other weights: experts were copied into memory"
            )
        return found


def expected(facts: ModelFacts, settings: RunSettings, *, other_models: bool = False) -> Expected:
    """What the engine says when it streams this model with these settings."""
    lines = [_line(ENABLED, "streaming")]
    if settings.io != "auto":
        lines.append(_line(f"expert_stream: io = {settings.io}", "--io"))
    if settings.cache_size:
        mib = sizes.whole_mib(settings.cache_size)
        lines.append(_line(f"expert_stream: cache size = {mib}", "--cache-size", r"(\.0+)? MiB"))
    if settings.keep_recent:
        text = f"expert keep-recent window = {settings.keep_recent} experts per layer"
        lines.append(_line(text, "--keep-recent"))
    if settings.fixation:
        text = (
            "expert fixation active \N{EM DASH} top-k pinned for the first "
            f"{settings.fixation} forward passes"
        )
        lines.append(_line(text, "--fixation"))
    if settings.prefetch:
        lines.append(_line("async prefetch thread started", "--prefetch"))
    resident = None if other_models else facts.tensor_bytes - facts.routed_bytes
    counts = frozenset({facts.slices, facts.slices_without_nextn})
    return Expected(tuple(lines), counts, resident)


def _line(text: str, asked_by: str, end: str = "") -> tuple[re.Pattern[str], str, str]:
    return re.compile(re.escape(text) + end + r"\s*$", re.MULTILINE), text, asked_by


@contextmanager
def private_log() -> Iterator[Path]:
    """A path for a program's log that only this user can read; gone afterwards."""
    with TemporaryDirectory(prefix="swapmoe-") as folder:
        yield Path(folder, "engine.log")


def read_log(path: Path) -> str:
    """The log so far; empty before the program has opened it."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def failure(program: str, missing: Sequence[str], log: str) -> LaunchError:
    """The error for a program that runs, but not as it was asked to."""
    said = [line for line in log.splitlines() if "expert" in line or "prefetch" in line]
    return LaunchError(
        f"{program} did not confirm what was asked for: {missing[0]}",
        evidence=[*missing[1:], *(f"it said: {line}" for line in said[-_LINES_SHOWN:])],
        hint="swapmoe patch verify, then swapmoe build --force",
    )
