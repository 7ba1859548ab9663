"""What was measured on this machine: runs of models and probes of disks, one JSON line each.

The file lies in the cache folder, is bounded, and may be damaged or deleted: lines that cannot be
read are passed over.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from swapmoe import paths
from swapmoe.gguf_info import ModelFacts

KEPT_LINES = 400
MAX_BYTES = 1 << 20
MAX_LINE = 4_096
LARGEST = 1e18


@dataclass(frozen=True)
class Run:
    """A measured run of a model; rates in tokens per second, sizes in bytes, times in seconds.

    `budget` is what experts could take, `active_bytes` the weights that a token is multiplied with.
    `hit_rate` (of slices), `bytes_per_token` (read from disk for each token decoded) and `stall`
    (waiting for reads, for each token) are None when unknown. `served` = it answered requests; else
    it computed random tokens.
    """

    model: str
    io: str
    threads: int
    budget: int
    active_bytes: int
    decode_rate: float
    prompt_rate: float | None = None
    hit_rate: float | None = None
    bytes_per_token: float | None = None
    stall: float | None = None
    served: int = 0
    time: float = 0.0


@dataclass(frozen=True)
class Hits:
    """How often an expert's bytes were there with a share (0 to 1) of all experts in memory."""

    model: str
    share: float
    hit_rate: float
    time: float = 0.0


@dataclass(frozen=True)
class Disk:
    """A measured disk: bytes per second for reads of `slice_bytes`, `depth` at a time."""

    device: str
    slice_bytes: int
    depth: int
    rate: float
    time: float = 0.0


Entry = TypeVar("Entry", Run, Hits, Disk)
_KINDS: dict[str, type[Run] | type[Hits] | type[Disk]] = {"run": Run, "hits": Hits, "disk": Disk}


def history_file() -> Path:
    """Where measurements are kept."""
    return paths.cache_dir() / "history.jsonl"


def model_key(facts: ModelFacts) -> str:
    """What tells models apart: name of the file, architecture, bytes of its tensors."""
    return f"{facts.path.name}|{facts.architecture}|{facts.tensor_bytes}"


def device_key(path: Path) -> str:
    """What tells disks apart: the number of the device that holds a file."""
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}" if hasattr(os, "major") else str(number)


def record(*entries: Run | Hits | Disk, file: Path | None = None) -> None:
    """Append measurements and drop the oldest beyond the bound. Raises `OSError`."""
    file, now = file or history_file(), time.time()
    new = []
    for entry in entries:
        kind = next(name for name, cls in _KINDS.items() if isinstance(entry, cls))
        new.append({"kind": kind, **asdict(entry), "time": entry.time or now})
    with paths.lock(file):
        lines = [json.dumps(line) for line in [*_lines(file), *new]][-KEPT_LINES:]
        paths.atomic_write_text(file, "\n".join(lines) + "\n")


def runs(facts: ModelFacts, file: Path | None = None) -> list[Run]:
    """Measured runs of a model, oldest first."""
    key = model_key(facts)
    return [entry for entry in _entries(Run, file or history_file()) if entry.model == key]


def hits(facts: ModelFacts, file: Path | None = None) -> list[Hits]:
    """The hit rates of a model that were measured last, together, by share."""
    key = model_key(facts)
    found = [entry for entry in _entries(Hits, file or history_file()) if entry.model == key]
    newest = max((entry.time for entry in found), default=0.0)
    return sorted((e for e in found if e.time == newest), key=lambda entry: entry.share)


def all_runs(file: Path | None = None) -> list[Run]:
    """Measured runs of all models, oldest first."""
    return list(_entries(Run, file or history_file()))


def disks(path: Path, file: Path | None = None) -> list[Disk]:
    """Probes of the disk that holds a file, oldest first."""
    try:
        key = device_key(path)
    except OSError:
        return []
    return [entry for entry in _entries(Disk, file or history_file()) if entry.device == key]


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - MAX_BYTES))
            data = stream.read(MAX_BYTES)
    except OSError:
        return
    for raw in data.splitlines():
        if len(raw) > MAX_LINE:
            continue
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _entries(kind: type[Entry], file: Path) -> Iterator[Entry]:
    for values in _lines(file):
        if _KINDS.get(str(values.get("kind"))) is kind and (entry := _entry(kind, values)):
            yield entry


def _entry(kind: type[Entry], values: Mapping[str, Any]) -> Entry | None:
    """An entry with every value of the right type, or None."""
    found: dict[str, Any] = {}
    for field in fields(kind):
        value = values.get(field.name, field.default)
        if not _fits(value, str(field.type)):
            return None
        found[field.name] = value
    return kind(**found)


def _fits(value: object, wanted: str) -> bool:
    if wanted.startswith("<class '"):
        wanted = wanted[8:-2]
    if value is None:
        return "None" in wanted
    if wanted.startswith("str"):
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if wanted.startswith("int") and not isinstance(value, int):
        return False
    return 0 <= value < LARGEST
