#!/usr/bin/env python3
"""Measure the expert I/O engines on models shaped like published ones, larger than their memory.

Linux only. Every run starts with a cold page cache, in a fresh cgroup whose limit counts the page
cache; engines alternate, so that drift of the machine hits all alike.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from swapmoe import bench_report, bench_rows, bench_setup, blockdev, console, paths
from swapmoe.bench_driver import Driver, Options, Result, measure_row
from swapmoe.bench_rows import ROWS, Row, Step
from swapmoe.comparison import as_text, bullets, put_section
from swapmoe.errors import LaunchError, SwapmoeError, UsageError
from swapmoe.gguf_info import inspect
from swapmoe.stream_bench import Bench


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
    signal.signal(signal.SIGTERM, bench_setup.interrupt)
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
