"""A model's files, where they lie and what their disk gives, for `swapmoe doctor`."""

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_low

from swapmoe import blockdev, diskprobe, filesystems, gguf_info, history
from swapmoe.diskprobe import Probe
from swapmoe.errors import ModelError, SwapmoeError, ToolError
from swapmoe.findings import Finding, gib
from swapmoe.gguf_info import ModelFacts

LARGE_READ_AHEAD_KIB = 512
USUAL_READ_AHEAD_KIB = 128
DEPTHS = (1, 8, 32)
PROBE_SECONDS = 0.5
"""For each depth and each kind of read: three seconds for all of them."""
PROBE_BYTES = 1 << 30
MEANINGFUL_BYTES = 256 << 20
"""Smaller models fit into a disk's own cache, and their slices are too small to say anything."""
_COLD_SHARE = 0.01
_OTHER_SLICE = 1 << 20


@dataclass(frozen=True)
class Disk:
    """What reads of slices at random places of the model gave; sizes in bytes.

    `left` is what could not be dropped from the page cache first; None = not known.
    """

    slice_bytes: int
    total: int
    left: int | None
    probes: tuple[Probe, ...]

    @property
    def cold(self) -> bool:
        """Whether the buffered reads can have come from the disk only."""
        return self.left is not None and self.left <= self.total * _COLD_SHARE

    def to_json(self) -> dict[str, object]:
        """For machines: rates in bytes per second, times in seconds."""
        return {
            "slice_bytes": self.slice_bytes,
            "cold": self.cold,
            "left_in_page_cache": self.left,
            "reads": [asdict(probe) | {"bandwidth": probe.bandwidth} for probe in self.probes],
        }


def model(path: Path) -> tuple[list[Finding], ModelFacts | None]:
    """What there is to say about a model without reading more than its header."""
    try:
        facts = gguf_info.inspect(path)
    except ModelError as error:
        return [Finding("bad", "model", _told(error), error.hint)], None
    text = (
        f"{facts.architecture}, {gib(facts.file_bytes)} in {len(facts.shards)} file(s), "
        f"{facts.slices:,} routed slices"
    )
    found = [Finding("ok", "model", text)]
    try:
        gguf_info.require_streamable(facts)
    except ModelError as error:
        found.append(Finding("bad", "streaming", _told(error), error.hint))
    return [*found, *_places(facts.shards), _cached(facts)], facts


def _told(error: SwapmoeError) -> str:
    return "; ".join([error.message, *error.evidence])


def _places(shards: Sequence[Path]) -> Iterator[Finding]:
    by_place = filesystems.places(shards)
    for place, files in by_place.items():
        which = "" if len(by_place) == 1 else f"{len(files)} of {len(shards)} files: "
        on = f" on {place.device} ({place.medium})" if place.device else f" ({place.medium})"
        free = shutil.disk_usage(files[0]).free
        text = f"{which}{place.kind}{on}, mounted at {place.mount or '?'}, {gib(free)} free"
        yield Finding("ok", "filesystem", text)
        for warning in filesystems.warnings(place):
            yield Finding("warn", "filesystem", warning)
        yield _read_ahead(files[0])


def _read_ahead(path: Path) -> Finding:
    try:
        device = blockdev.device_of(path)
        kib = int(device.read_ahead.read_text())
    except (ToolError, OSError, ValueError, AttributeError):  # no device numbers here
        return Finding("note", "read-ahead", "this filesystem has no setting for it")
    text = f"{kib:,} KiB"
    if kib <= LARGE_READ_AHEAD_KIB:
        return Finding("ok", "read-ahead", text)
    return Finding(
        "warn",
        "read-ahead",
        f"{text}: each page fault may read that much around the page it needs; measured up to 35 "
        "times slower when a model larger than memory is paged in. --io direct does not care",
        f"echo {USUAL_READ_AHEAD_KIB} | sudo tee {device.read_ahead}",
    )


def _cached(facts: ModelFacts) -> Finding:
    left = _resident(facts.shards)
    if left is None:
        return Finding("note", "page cache", "this system does not tell what it holds")
    return Finding("ok", "page cache", f"holds {gib(left)} of {gib(facts.file_bytes)}")


def _resident(shards: Sequence[Path]) -> int | None:
    try:
        return sum(blockdev.resident_bytes(shard) for shard in shards)
    except (AttributeError, TypeError, OSError, ValueError):  # no mincore, or nothing to map
        return None


def measure(facts: ModelFacts) -> Disk:
    """Read slices of the model at random places, for a few seconds.

    Raises `ToolError` when the files cannot be read in that way.
    """
    sizes = Counter({t.slice_bytes: t.slices for t in facts.routed}).elements()
    slice_bytes = median_low(sizes) if facts.routed else min(_OTHER_SLICE, facts.file_bytes)
    for shard in facts.shards:
        blockdev.drop(shard)
    left = _resident(facts.shards)
    probes = []
    for direct in (True, False):
        for seed, depth in enumerate(DEPTHS):
            probes.append(
                diskprobe.probe(
                    facts.shards,
                    slice_bytes,
                    depth,
                    seconds=PROBE_SECONDS,
                    most=PROBE_BYTES,
                    direct=direct,
                    seed=seed,
                )
            )
    if facts.file_bytes >= MEANINGFUL_BYTES:
        _remember(facts.path, probes)
    return Disk(slice_bytes, facts.file_bytes, left, tuple(probes))


def _remember(path: Path, probes: Sequence[Probe]) -> None:
    """Keep what the disk gave for direct reads, for `swapmoe plan`; without a place, go on."""
    direct = [probe for probe in probes if probe.direct and probe.reads]
    if direct:
        best = max(direct, key=lambda probe: probe.bandwidth)
        device = history.device_key(path)
        with contextlib.suppress(OSError):
            history.record(history.Disk(device, best.slice_bytes, best.depth, best.bandwidth))


def disk_findings(disk: Disk, facts: ModelFacts) -> list[Finding]:
    """The table of what was measured, and how far it can be believed."""
    found = [
        Finding(
            "ok",
            "disk probe",
            f"slices of {disk.slice_bytes:,} bytes, random places: MB/s (ms each)",
        ),
        Finding("ok", "", f"{'reads at once':<16}{'direct':>16}{'buffered':>18}"),
    ]
    for depth in DEPTHS:
        direct, buffered = (
            next(p for p in half if p.depth == depth)
            for half in (disk.probes[: len(DEPTHS)], disk.probes[len(DEPTHS) :])
        )
        cells = [_cell(direct) if direct.direct else "refused", _cell(buffered)]
        found.append(Finding("ok", "", f"{depth:<16}{cells[0]:>16}{cells[1]:>18}"))
    if not disk.cold:
        why = (
            "this system cannot drop a file from the page cache"
            if disk.left is None
            else f"{gib(disk.left)} could not be dropped from the page cache; something has it open"
        )
        found.append(Finding("warn", "disk probe", f"{why}: buffered figures may be of memory"))
    needed = facts.bytes_per_token(facts.expert_used_count)
    best = max((probe.bandwidth for probe in disk.probes if probe.direct), default=0.0)
    if needed and best:
        text = (
            f"a token needs {gib(needed)} of experts: {needed / best:.2f} s when none is in memory"
        )
        found.append(Finding("ok", "", text))
    return found


def _cell(probe: Probe) -> str:
    return f"{probe.bandwidth / 1e6:,.0f} ({probe.latency * 1e3:.2f})"
