"""One run of llama-bench with an expert I/O engine, and what it showed."""

import json
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from swapmoe import openmp, run, usage
from swapmoe.cgroup import memory_limit
from swapmoe.usage import Measured, Usage

RUN_SECONDS = 1200.0
_STATISTICS = re.compile(r"expert_stream: statistics: (.*)")
_READERS = re.compile(r"(\d+) reader threads, (direct I/O|buffered reads)")
_BUFFER = re.compile(r"\bCPU\s+(KV|compute|output) buffer size =\s*([\d.]+) MiB")
_RUN = re.compile(r"llama-bench: benchmark \d+/\d+: (?:prompt|generation) run (\d+)/")


@dataclass(frozen=True)
class Engine:
    """One side of the comparison; `cache_mib` 0 leaves the budget to the engine.

    Without `io` it is the unpatched build, with experts that no repacking touches.
    """

    name: str
    io: str = ""
    prefetch: bool = False
    cache_mib: int = 0

    @property
    def flags(self) -> list[str]:
        """The options of llama-bench."""
        if not self.io:
            return ["-ot", "exps=CPU"]
        flags = ["-es", "1", "-eio", self.io, "-ep", str(int(self.prefetch))]
        return [*flags, "-ecs", str(self.cache_mib)] if self.cache_mib else flags


UNPATCHED = Engine("unpatched")
ENGINES = tuple(
    Engine(io + ("+prefetch" if prefetch else ""), io, prefetch)
    for io in ("fault", "mmap", "direct")
    for prefetch in (False, True)
)


@dataclass(frozen=True)
class Task:
    """What to compute: random tokens, `repeats` times; the first `cold` times do not count.

    A prompt is one micro-batch; without `is_prompt` the tokens come one by one, after `depth`
    others that do not count either.
    """

    tokens: int
    is_prompt: bool
    repeats: int = 1
    cold: int = 0
    depth: int = 0

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"prefill {self.tokens}" if self.is_prompt else "decode"

    @property
    def counted(self) -> int:
        """Tokens of the part that counts."""
        return self.tokens * (self.repeats - self.cold)

    @property
    def flags(self) -> list[str]:
        """The options of llama-bench."""
        sizes = ("-p", self.tokens, "-n", 0) if self.is_prompt else ("-p", 0, "-n", self.tokens)
        batch = max(512, self.tokens)
        words = (*sizes, "-d", self.depth, "-b", batch, "-ub", batch, "-r", self.repeats)
        return [str(word) for word in words]


@dataclass(frozen=True)
class Sample:
    """One run. `part` is what the part that counts used; sizes in bytes, times in seconds.

    `statistics` are the engine's own counters over the whole run, `steps` the seconds and the bytes
    read of each repetition, `buffers` what llama.cpp allocated. `outcome` is "ok", or why there are
    no figures: then `part` is all of the run.
    """

    engine: str
    task: str
    outcome: str
    tokens: int
    rate: float | None
    part: Usage
    whole: Usage
    peak: int | None
    readers: int = 0
    is_direct: bool = False
    statistics: Mapping[str, int] = field(default_factory=dict)
    buffers: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[tuple[float, int], ...] = ()
    tail: tuple[str, ...] = ()

    @property
    def passes(self) -> int:
        """Forward passes of the whole run."""
        return self.statistics.get("passes", 0)


@dataclass(frozen=True)
class Bench:
    """What all runs on a model have in common. `env` is added to their environment."""

    program: Path
    model: Path
    threads: int
    env: Mapping[str, str] = field(default_factory=dict)

    def sample(self, engine: Engine, task: Task, limit: int | None) -> Sample:
        """Run once, in a group of its own with `limit` bytes of memory (None = as it comes).

        Raises ToolError when there is no such program, or memory cannot be limited.
        """
        argv = [str(self.program), "-m", str(self.model), "-t", str(self.threads)]
        argv += [*task.flags, *engine.flags, "--no-warmup", "--progress", "-v", "-o", "json"]
        env = run.clean_env(self.env, drop_prefixes=("GIT_", "LLAMA_ARG_"))
        env |= openmp.variables(engine.io, env)
        with memory_limit(limit) if limit else nullcontext() as group:
            done = usage.measure(
                group.wrap(argv) if group else argv,
                env=env,
                timeout=RUN_SECONDS,
                is_mark=lambda line: bool(_RUN.match(line)),
            )
            oom = bool(group and group.oom_kills())
            peak = group.peak() if group else None
        return read_sample(engine, task, done, oom=oom, peak=peak)


def read_sample(
    engine: Engine, task: Task, done: Measured, *, oom: bool = False, peak: int | None = None
) -> Sample:
    """Return what a run showed, from its output and what it used."""
    log = done.completed.stderr
    rate = _rate(task, done.completed.stdout)
    start = _start(task, done)
    code = done.completed.returncode
    if oom:
        outcome = "killed (OOM)"
    elif done.timed_out:
        outcome = "timed out"
    elif code:
        outcome = f"failed ({code})"
    else:
        outcome = "ok" if rate and start else "no figures"
    readers = _READERS.search(log)
    return Sample(
        engine=engine.name,
        task=task.name,
        outcome=outcome,
        tokens=task.counted,
        rate=rate if outcome == "ok" else None,
        part=done.usage.since(start) if start else done.usage,
        whole=done.usage,
        peak=peak,
        readers=int(readers[1]) if readers else 0,
        is_direct=bool(readers and readers[2] == "direct I/O"),
        statistics=_statistics(log),
        buffers={kind: int(float(mib) * 2**20) for kind, mib in _BUFFER.findall(log)},
        steps=_steps(task, done),
        tail=() if outcome == "ok" else tuple(log.splitlines()[-6:]),
    )


def _start(task: Task, done: Measured) -> Usage | None:
    """Return what had been used when the part that counts began."""
    for line, used in done.marks:
        found = _RUN.match(line)
        if found and int(found[1]) == task.cold + 1:
            return used
    return None


def _rate(task: Task, output: str) -> float | None:
    """Return the tokens per second of the part that counts."""
    counted = sum(_seconds(output)[task.cold :])
    return task.counted / counted if counted else None


def _seconds(output: str) -> list[float]:
    """Return the time of each repetition."""
    try:
        tests, _end = json.JSONDecoder().raw_decode(output, output.index("["))
        return [float(spent) / 1e9 for spent in tests[0]["samples_ns"]]
    except (ValueError, LookupError, TypeError):
        return []


def _steps(task: Task, done: Measured) -> tuple[tuple[float, int], ...]:
    """Return seconds and bytes read of each repetition; the last ones of a quick run may lack."""
    marks = [used.read for line, used in done.marks if _RUN.match(line)]
    if len(marks) == task.repeats:
        marks.append(done.usage.read)
    reads = [after - before for before, after in pairwise(marks)]
    return tuple(zip(_seconds(done.completed.stdout), reads, strict=False))


def _statistics(log: str) -> dict[str, int]:
    found = _STATISTICS.search(log)
    pairs = (item.split("=", 1) for item in found[1].split()) if found else ()
    return {key: int(value) for key, value in pairs if value.isdigit()}
