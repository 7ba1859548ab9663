#!/usr/bin/env python3
"""Hold `swapmoe plan` against reality: six generated models, three memory limits each.

Linux only. One calibration per model, with the most memory; then each row is planned from that
alone and measured from a cold start, in a fresh cgroup whose limit counts the page cache.
"""

import os
import signal
import sys
from pathlib import Path

import click

from swapmoe import bench_setup, blockdev, console, paths, plan_bench, plan_driver
from swapmoe.comparison import as_markdown, as_text, put_section
from swapmoe.errors import LaunchError, SwapmoeError
from swapmoe.plan_bench import PRESETS, RATIOS, State

SECTION = "bench-plan"


FILE = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command(context_settings={"show_default": True})
@click.option("--model", "presets", type=click.Choice(PRESETS), multiple=True, help="Only these.")
@click.option("--patched", type=FOLDER, help="Patched programs.  [the latest build]")
@click.option("--read-ahead", "kib", type=int, default=128, help="Of the device, in KiB.")
@click.option("--threads", type=click.IntRange(1), default=os.cpu_count(), help="To compute with.")
@click.option("--state", "file", type=FILE, help="What is done.  [bench-plan.json in the cache]")
@click.option("--again", is_flag=True, help="Measure rows again that are done already.")
@click.option("--markdown", type=FILE, help="Put the table into this page.")
def main(
    presets: tuple[str, ...],
    patched: Path | None,
    kib: int,
    threads: int,
    file: Path | None,
    again: bool,
    markdown: Path | None,
) -> None:
    """Compare plans with measured decode rates and peak memory; needs root.

    Goes on where it was interrupted. Exit code 10 when a row is off by more than allowed.
    """
    signal.signal(signal.SIGTERM, bench_setup.interrupt)
    chosen = [preset for preset in PRESETS if preset in presets or not presets]
    try:
        program = (patched or bench_setup.patched_build()) / "llama-bench"
        if not program.is_file():
            raise LaunchError(f"there is no {program}", hint="swapmoe build, or --patched")
        device = blockdev.device_of(paths.cache_dir())
        build = f"{program} {program.stat().st_mtime_ns} {threads}"
        state = State(file or paths.cache_dir() / "bench-plan.json", build)
        for preset in chosen if again else ():
            state.forget(preset)
        with blockdev.read_ahead(device, kib) as before:
            facts = [
                bench_setup.machine(),
                f"device {device.name}: read-ahead {kib} KiB (was {before}); page cache dropped "
                "before each run",
                f"llama-bench with random tokens, {threads} threads; one calibration per "
                f"model, at file/RAM {RATIOS[0]:g}; {plan_bench.COUNTED * plan_bench.STEP} tokens "
                "count in each row",
            ]
            for fact in facts:
                console.say(fact)
            plan_driver.measure(state, chosen, program, threads)
        results = [result for result in state.results if result.preset in chosen]
        rows, ends = plan_bench.table(results), plan_bench.verdict(results)
        for line in [*as_text(rows), "", *ends]:
            click.echo(line)
        if markdown:
            put_section(markdown, SECTION, as_markdown(SECTION, facts, rows, ends))
        if any(result.is_off for result in results):
            raise LaunchError("the plan was off", evidence=ends[1:])
    except SwapmoeError as error:
        console.print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        console.say("interrupted; the same command goes on from here")
        sys.exit(130)


if __name__ == "__main__":
    main()
