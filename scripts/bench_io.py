#!/usr/bin/env python3
"""Measure the expert I/O engines on models shaped like published ones, larger than their memory.

Linux only. Every run starts with a cold page cache, in a fresh cgroup whose limit counts the page
cache; engines alternate, so that drift of the machine hits all alike.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import NoReturn

import click
import psutil

from swapmoe import bench_report, bench_rows, bench_setup, blockdev, console, diskprobe, paths
from swapmoe.bench_report import MARGIN, MIB, OWN, Limits, planned_bytes
from swapmoe.bench_rows import ROWS, Row, Step
from swapmoe.comparison import GB, as_text, bullets, put_section, ratio
from swapmoe.errors import LaunchError, ModelError, SwapmoeError, UsageError
from swapmoe.gguf_info import ModelFacts, inspect
from swapmoe.stream_bench import UNPATCHED, Bench, Engine, Sample, Task

DEPTH = 8
"""Reads at a time where the engine does not say how many it does."""


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


def measure_compute(driver: Driver, tasks: Sequence[Task]) -> dict[str, float]:
    """Return tokens/s by task with everything in memory, by the unpatched build."""
    driver.warm()
    rates = {}
    for task in tasks:
        sample = driver.run(UNPATCHED, task, None, "in memory")
        if not sample.rate:
            raise LaunchError(f"llama-bench of the unpatched build {sample.outcome}")
        rates[task.name] = sample.rate
    return rates


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


def measure_row(driver: Driver, row: Row, steps: list[Step], options: "Options") -> Result:
    """Measure all steps of a row."""
    started = time.monotonic()
    facts, limit = driver.facts, row.limit(driver.facts.file_bytes)
    dense = facts.tensor_bytes - facts.routed_bytes
    samples: list[Sample] = []
    for number, step in bench_rows.in_order(steps, options.rounds):
        engine = step.engine
        if options.fill and engine.io == OWN:
            engine = replace(engine, cache_mib=what_is_left(limit - dense, step.task, samples))
        samples.append(driver.run(engine, step.task, limit, f"{number + 1}/{options.rounds}"))
    probe = probe_disk(facts, samples)
    tasks = [task for task in bench_rows.IN_MEMORY if any(s.task.name == task.name for s in steps)]
    limits = Limits(
        experts=facts.routed_bytes,
        dense=dense,
        demand=facts.bytes_per_token(facts.expert_used_count),
        bandwidth=probe.total / probe.seconds,
        depth=probe.depth,
        compute=measure_compute(driver, tasks),
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


def show(result: Result, steps: list[Step]) -> list[str]:
    """Print a row's tables and notes; returns its Markdown."""
    click.echo(f"\n{result.row.preset}")
    for line in result.facts:
        click.echo(line)
    tables, ends = [], []
    for task in dict.fromkeys(step.task for step in steps):
        rows = bench_report.table(result.samples, task, result.limits)
        tables.append((task.name, rows))
        ends += bench_report.notes(result.samples, task, result.limits)
        click.echo(f"\n{task.name}")
        for line in as_text(rows):
            click.echo(line)
    ends += result.notes
    click.echo()
    for line in ends:
        click.echo(line)
    return bench_report.section(result.facts, tables, ends)


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    rounds: int
    threads: int
    quick: bool
    resident: bool
    fill: bool
    remove: bool


def measure(
    rows: Sequence[Row], base: Path, patched: Path, options: Options, model: Path | None
) -> Iterator[tuple[Result, list[str]]]:
    """Measure the rows one by one; yields the result of each and its Markdown lines."""
    steps = bench_rows.plan(options.rounds, quick=options.quick)
    for row in rows:
        others = [other.preset for other in ROWS if other != row]
        path = model or bench_setup.model(row.preset, disposable=others)
        own, other = (
            Bench(folder / "llama-bench", path, options.threads) for folder in (patched, base)
        )
        result = measure_row(Driver(own, other, inspect(path)), row, steps, options)
        yield result, show(result, steps)
        if options.remove and not model:
            bench_setup.remove(row.preset)


def save(
    facts: list[str],
    results: list[Result],
    lines: list[str],
    json_file: Path | None,
    markdown: Path | None,
) -> None:
    """Write all results so far, and the section of the last one with its `lines`."""
    if json_file:
        data = {"facts": facts, "rows": [asdict(result) for result in results]}
        paths.atomic_write_text(json_file, json.dumps(data, indent=2) + "\n")
    if markdown:
        row = results[-1].row
        name = f"bench-io-{row.preset}"
        head = [f"<!-- begin {name} -->", f"### {row.published}", "", *bullets(facts)]
        put_section(markdown, name, "\n".join([*head, *lines, f"<!-- end {name} -->"]))


def interrupt(_number: int, _frame: object) -> NoReturn:
    """Let SIGTERM clean up as Ctrl-C does."""
    raise KeyboardInterrupt


FILE = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
NAMES = [row.preset for row in ROWS]


@click.command(context_settings={"show_default": True})
@click.option("--row", "names", type=click.Choice(NAMES), multiple=True, help="Only these rows.")
@click.option("--quick", is_flag=True, help="One round, without prefetch and long prompts.")
@click.option("--resident", is_flag=True, help="Also with all experts in memory.")
@click.option(
    "--fill", is_flag=True, help="Give direct all memory but 64 MiB, not what it takes itself."
)
@click.option("-m", "--model", type=FILE, help="Instead of the model of the row.")
@click.option("--ratio", type=click.FloatRange(0.1), help="File size / memory, not the row's.")
@click.option("--base", type=FOLDER, help="Unpatched programs.  [compiled when needed]")
@click.option("--patched", type=FOLDER, help="Patched programs.  [the latest build]")
@click.option("--read-ahead", "kib", type=int, default=128, help="Of the device, in KiB.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="How often each engine runs.")
@click.option("--threads", type=click.IntRange(1), default=os.cpu_count(), help="To compute with.")
@click.option("--remove", is_flag=True, help="Remove each model when its row is done.")
@click.option("--json", "json_file", type=FILE, help="Write all runs there.")
@click.option("--markdown", type=FILE, help="Put each row's tables into this page.")
def main(
    names: tuple[str, ...],
    quick: bool,
    resident: bool,
    fill: bool,
    model: Path | None,
    ratio: float | None,
    base: Path | None,
    patched: Path | None,
    kib: int,
    rounds: int,
    threads: int,
    remove: bool,
    json_file: Path | None,
    markdown: Path | None,
) -> None:
    """Measure the expert I/O engines; needs root for cgroup, caches and read-ahead.

    Models are written to the cache folder, and the others removed when the disk is too full. A run
    that fails is a result, and exit code 10.
    """
    signal.signal(signal.SIGTERM, interrupt)
    rows = [row for row in ROWS if row.preset in names or not names]
    rows = [replace(row, ratio=ratio) if ratio else row for row in rows]
    options = Options(1 if quick else rounds, threads, quick, resident, fill, remove)
    try:
        if model and len(rows) > 1:
            raise UsageError("--model goes with one --row", hint=f"--row {NAMES[0]}")
        patched = patched or bench_setup.patched_build()
        base = base or bench_setup.unpatched_build()
        device = blockdev.device_of(model.parent if model else paths.cache_dir())
        with blockdev.read_ahead(device, kib) as before:
            facts = [
                bench_setup.machine(),
                f"device {device.name}: read-ahead {kib} KiB (was {before}); page cache dropped "
                "before each run",
                f"llama-bench with random tokens, {threads} threads; medians of {options.rounds} "
                "alternating rounds, what is not in each of them of one; budget of direct: "
                + ("what dense weights, buffers and 64 MiB leave" if fill else "its own choice"),
            ]
            for fact in facts:
                console.say(fact)
            results: list[Result] = []
            for result, lines in measure(rows, base, patched, options, model):
                results.append(result)
                save(facts, results, lines, json_file, markdown)
        failed = [s for result in results for s in result.samples if s.outcome != "ok"]
        if failed:
            first = f"{failed[0].task}, {failed[0].engine}: {failed[0].outcome}"
            raise LaunchError(f"{len(failed)} runs failed", evidence=[first, *failed[0].tail])
    except SwapmoeError as error:
        console.print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        console.say("interrupted; memory group and read-ahead are as they were")
        sys.exit(130)


if __name__ == "__main__":
    main()
