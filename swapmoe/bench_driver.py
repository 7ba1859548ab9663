"""Runs the engines on one model: cold and under a memory limit, and with everything in memory."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

import psutil

from swapmoe import bench_report, bench_rows, blockdev, console, diskprobe
from swapmoe.bench_report import MARGIN, MIB, OWN, Limits, planned_bytes
from swapmoe.bench_rows import Row, Step
from swapmoe.comparison import GB, ratio
from swapmoe.errors import LaunchError, ModelError
from swapmoe.gguf_info import ModelFacts
from swapmoe.stream_bench import UNPATCHED, Bench, Engine, Sample, Task

DEPTH = 8
"""Reads at a time where the engine does not say how many it does."""


@dataclass(frozen=True)
class Options:
    """How to measure; `fill` gives `direct` all memory but MARGIN, not what it takes itself."""

    rounds: int
    threads: int
    quick: bool
    resident: bool
    fill: bool
    remove: bool


@dataclass(frozen=True)
class Result:
    """All that was found out about one row."""

    row: Row
    facts: list[str]
    limits: Limits
    samples: list[Sample]
    resident: list[Sample]
    notes: list[str]
    seconds: float


@dataclass(frozen=True)
class Driver:
    """Runs llama-bench on one model."""

    patched: Bench
    base: Bench
    facts: ModelFacts

    def run(self, engine: Engine, task: Task, limit: int | None, label: str) -> Sample:
        """Run once, cold when memory is limited, and say how it went."""
        if limit:
            blockdev.forget(list(self.facts.shards))
        bench = self.patched if engine.io else self.base
        sample = bench.sample(engine, task, limit)
        figure = f"{sample.rate:.2f} tok/s" if sample.rate else sample.outcome
        console.say(f"[{label}] {task.name}, {engine.name}: {figure}, {sample.whole.wall:.0f} s")
        for line in sample.tail:
            console.say(f"    {line[:150]}")
        return sample

    def warm(self) -> None:
        """Read the model into the page cache. Raises ModelError when it does not fit."""
        free = psutil.virtual_memory().available
        if free < self.facts.file_bytes * 1.3:
            raise ModelError(
                "the model does not fit in memory, so the speed of computing cannot be measured",
                evidence=[f"{free / GB:.1f} GB free, {self.facts.file_bytes / GB:.1f} GB model"],
            )
        for shard in self.facts.shards:
            with shard.open("rb", buffering=0) as file:
                while file.read(16 << 20):
                    pass


def measure_compute(driver: Driver, steps: Sequence[Step], label: str) -> list[Sample]:
    """Return a run of each task with everything in memory, by the unpatched build."""
    driver.warm()
    names = {step.task.name for step in steps}
    tasks = [task for task in bench_rows.IN_MEMORY if task.name in names]
    samples = [driver.run(UNPATCHED, task, None, f"{label} in memory") for task in tasks]
    for sample in samples:
        if not sample.rate:
            raise LaunchError(f"llama-bench of the unpatched build {sample.outcome}")
    return samples


def measure_resident(driver: Driver, rounds: int) -> list[Sample]:
    """Compare `direct` with the unpatched build, all experts in memory."""
    driver.warm()
    own = Engine(OWN, OWN, cache_mib=driver.facts.routed_bytes // MIB + 64)
    return [
        driver.run(engine, bench_rows.RESIDENT, None, f"resident {number + 1}/{rounds}")
        for number in range(rounds)
        for engine in ((UNPATCHED, own) if number % 2 == 0 else (own, UNPATCHED))
    ]


def probe_disk(facts: ModelFacts, samples: Sequence[Sample]) -> diskprobe.Probe:
    """Read as the engine does: as much at a time, as many at once."""
    size = int(mean(tensor.slice_bytes for tensor in facts.routed))
    depth = max((sample.readers for sample in samples), default=0) or DEPTH
    blockdev.forget(list(facts.shards))
    return diskprobe.probe(facts.shards, size, depth)


def run_at_limit(driver: Driver, samples: Sequence[Sample], limits: Limits) -> list[str]:
    """Let `direct` decode in just the memory that it should need."""
    own = [s for s in samples if s.engine == OWN and s.task == "decode" and s.outcome == "ok"]
    if not own:
        return []
    budget = own[0].statistics.get("budget", 0) // MIB
    limit = planned_bytes(own[0], limits) + MARGIN
    found = driver.run(Engine(OWN, OWN, cache_mib=budget), bench_rows.DECODE, limit, "at the limit")
    speed = f"{found.rate:.2f} tok/s" if found.rate else found.outcome
    return [f"decode: {OWN} in {limit / MIB:.0f} MiB, all it should need: {speed}"]


def what_is_left(memory: int, task: Task, samples: Sequence[Sample]) -> int:
    """Return the MiB that the buffers of a task leave of `memory`, as earlier runs had them."""
    known = [sum(s.buffers.values()) for s in samples if s.task == task.name and s.buffers]
    return max(1, (memory - MARGIN - max(known)) // MIB) if known else 0


def measure_row(driver: Driver, row: Row, steps: list[Step], options: Options) -> Result:
    """Measure all steps of a row."""
    started = time.monotonic()
    facts, limit = driver.facts, row.limit(driver.facts.file_bytes)
    dense = facts.tensor_bytes - facts.routed_bytes
    samples: list[Sample] = []
    in_memory: list[Sample] = []
    for number in range(options.rounds):
        label = f"{number + 1}/{options.rounds}"
        in_round = bench_rows.in_round(steps, number)
        for step in in_round:
            engine = step.engine
            if options.fill and engine.io == OWN:
                engine = replace(engine, cache_mib=what_is_left(limit - dense, step.task, samples))
            samples.append(driver.run(engine, step.task, limit, label))
        in_memory += measure_compute(driver, in_round, label)
    probe = probe_disk(facts, samples)
    limits = Limits(
        experts=facts.routed_bytes,
        dense=dense,
        demand=facts.bytes_per_token(facts.expert_used_count),
        bandwidth=probe.total / probe.seconds,
        depth=probe.depth,
        in_memory=in_memory,
    )
    notes = bench_report.memory_notes(samples, limits) + run_at_limit(driver, samples, limits)
    resident = measure_resident(driver, options.rounds) if options.resident else []
    if resident:
        rates = [[s.rate for s in resident if s.engine == name] for name in (OWN, UNPATCHED.name)]
        notes.append(f"decode, all in memory: {OWN} / unpatched: {ratio(*rates)}")
    lines = [
        f"like {row.published}: {row.is_like}",
        f"{facts.file_bytes / GB:.2f} GB, {limits.dense / GB:.2f} of them dense; memory "
        f"{limit / GB:.2f} GB (1/{row.ratio}), page cache included; a token needs "
        f"{limits.demand / 1e6:.0f} MB of experts",
        f"disk: {limits.bandwidth / GB:.2f} GB/s in {'direct' if probe.direct else 'buffered'} "
        f"reads of {probe.slice_bytes / 1e6:.2f} MB at random places, {probe.depth} at a time; "
        f"median {probe.latency * 1e3:.1f} ms",
    ]
    seconds = time.monotonic() - started
    return Result(row, lines, limits, samples, resident, notes, seconds)
