#!/usr/bin/env python3
"""Measure the expert I/O modes side by side on a model larger than the memory they get.

Linux only. Each run starts with a cold page cache, in a fresh cgroup whose limit counts the page
cache, at a fixed device read-ahead; modes alternate, so that drift of the machine hits all alike.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import click
import psutil

from swapmoe import bench_setup, blockdev, console, models, paths
from swapmoe.cgroup import MemoryGroup, memory_limit
from swapmoe.comparison import GB, Run, as_markdown, as_text, put_section, ratios, table
from swapmoe.errors import LaunchError, ModelError, SwapmoeError, UsageError
from swapmoe.gguf_info import inspect

PROMPT = "Hello world!"
RUN_SECONDS = 3600
TAIL_LINES = 6
ATTEMPTS = 3
NO_FIGURES = "no figures"
REFERENCE = "fault"
_FIGURE = r"\b{} time =\s*([\d.]+) ms /\s*(\d+)"
_STATISTICS = re.compile(r"expert_stream: statistics: (.*)")


@dataclass(frozen=True)
class Mode:
    """One side of the comparison: a build, flags and environment."""

    name: str
    patched: bool
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def streaming(io: str) -> Mode:
    """Return the mode of an I/O engine."""
    return Mode(io, True, ("--no-warmup", "--expert-streaming", "--expert-io", io))


MODES = (
    Mode("unpatched", False),
    Mode("unpatched-no-repack", False, ("--no-warmup", "--no-repack")),
    streaming("fault"),
    streaming("mmap"),
    streaming("direct"),
)
RESIDENT_MODES = (Mode("unpatched", False), Mode("streaming off", True))


@dataclass(frozen=True)
class Setup:
    """What all runs of a comparison have in common; sizes in bytes."""

    model: Path
    files: tuple[Path, ...]
    size: int
    base: Path
    patched: Path
    threads: int
    tokens: int

    def program(self, mode: Mode, name: str) -> str:
        """Return the path of a mode's program."""
        return str((self.patched if mode.patched else self.base) / name)


def execute(argv: list[str], mode: Mode, group: MemoryGroup | None = None) -> tuple[Run, str]:
    """Run one command to its end; return what it cost, and stdout followed by stderr."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")} | mode.env
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.monotonic()
        child = subprocess.Popen(
            group.wrap(argv) if group else argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(child.pid, signal.SIGKILL))
        signal.alarm(RUN_SECONDS)
        try:
            _pid, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        finally:
            signal.alarm(0)
        wall = time.monotonic() - started
        out.seek(0)
        err.seek(0)
        text = (out.read() + b"\n" + err.read()).decode(errors="replace")
    if group and group.oom_kills():
        outcome = "killed (OOM)"
    elif wall >= RUN_SECONDS:
        outcome = "timed out"
    else:
        outcome = f"failed ({child.returncode})" if child.returncode else "ok"
    run = Run(
        mode=mode.name,
        outcome=outcome,
        wall=wall,
        user=usage.ru_utime,
        system=usage.ru_stime,
        read=usage.ru_inblock * 512,
        major_faults=usage.ru_majflt,
        peak=group.peak() if group else None,
    )
    return run, text


def cold_run(setup: Setup, mode: Mode, limit: int) -> Run:
    """Answer one prompt under the memory limit, from a cold cache.

    llama-completion may lose its last log lines, and the figures with them: then once more.
    """
    for _attempt in range(ATTEMPTS):
        run = _cold_run(setup, mode, limit)
        if run.outcome != NO_FIGURES:
            break
    return run


def _cold_run(setup: Setup, mode: Mode, limit: int) -> Run:
    blockdev.forget(list(setup.files))
    argv = [setup.program(mode, "llama-completion"), "-m", str(setup.model), "-p", PROMPT]
    argv += ["-n", str(setup.tokens), "-t", str(setup.threads), "-c", "512", "--temp", "0"]
    argv += ["--seed", "1", "--ignore-eos", "-no-cnv", "-lv", "4", *mode.flags]
    with memory_limit(limit) as group:
        run, text = execute(argv, mode, group)
    if run.outcome != "ok":
        _show_end(run, text)
        return run
    prompt = re.search(_FIGURE.format("prompt eval"), text)
    decode = re.search(_FIGURE.format("(?<!prompt )eval"), text)
    if not (prompt and decode):
        run = replace(run, outcome=NO_FIGURES)
        _show_end(run, text)
        return run
    engine = _STATISTICS.search(text)
    return replace(
        run,
        decode=int(decode[2]) / float(decode[1]) * 1e3,
        prompt=float(prompt[1]) / 1e3,
        engine=engine[1].strip() if engine else "",
    )


def resident_run(setup: Setup, mode: Mode) -> Run:
    """Let llama-bench measure, with the whole model in memory; `prompt` is tokens/s here."""
    argv = [setup.program(mode, "llama-bench"), "-m", str(setup.model), "-o", "json", "-r", "3"]
    argv += ["-p", "64", "-n", str(setup.tokens), "-t", str(setup.threads), *mode.flags]
    run, text = execute(argv, mode)
    if run.outcome != "ok":
        _show_end(run, text)
        raise LaunchError(f"{mode.name}: llama-bench {run.outcome}")
    tests, _end = json.JSONDecoder().raw_decode(text, text.index("["))
    rates = {bool(test["n_gen"]): float(test["avg_ts"]) for test in tests}
    return replace(run, decode=rates[True], prompt=rates[False])


def _show_end(run: Run, text: str) -> None:
    console.say(f"  {run.mode}: {run.outcome}; the end of its output:")
    for line in text.splitlines()[-TAIL_LINES:]:
        console.say(f"    {line[:150]}")


def alternate(modes: Sequence[Mode], repeats: int, measure: Callable[[Mode], Run]) -> list[Run]:
    """Run all modes in turn, every other round backwards, and return the runs in order."""
    runs = []
    for round_number in range(repeats):
        for mode in modes if round_number % 2 == 0 else reversed(modes):
            runs.append(run := measure(mode))
            figure = f"{run.decode:.2f} tok/s" if run.decode else run.outcome
            console.say(f"[{round_number + 1}/{repeats}] {mode.name}: {figure}, {run.wall:.0f} s")
    return runs


def make_setup(
    model: Path | None, preset: str, base: Path | None, patched: Path | None, **sizes: int
) -> Setup:
    """Find or make the model and the two builds."""
    base = base or bench_setup.unpatched_build()
    patched = patched or bench_setup.patched_build()
    model = model or bench_setup.model(preset)
    facts = inspect(model)
    return Setup(
        model=facts.path,
        files=tuple(facts.shards),
        size=facts.file_bytes,
        base=base,
        patched=patched,
        **sizes,
    )


def stream_facts(setup: Setup, limit: int, device: str, kib: int, before: int) -> list[str]:
    """Return the conditions of a streaming comparison, one per line."""
    return [
        bench_setup.machine(),
        f"model: {setup.model.name}, {setup.size / GB:.2f} GB; "
        f"limit {limit / GB:.2f} GB ({limit / setup.size:.0%} of it), page cache included",
        f"device {device}: read-ahead {kib} KiB (was {before}); page cache dropped before each run",
        f"{len(PROMPT)}-token prompt, {setup.tokens} tokens, {setup.threads} threads; medians",
    ]


def measure_streaming(
    setup: Setup, modes: Sequence[Mode], repeats: int, percent: float, kib: int
) -> tuple[list[str], list[Run]]:
    """Compare the modes under the memory limit; returns the conditions and the runs."""
    limit = int(setup.size * percent / 100)
    device = blockdev.device_of(setup.model)
    with blockdev.read_ahead(device, kib) as before:
        facts = stream_facts(setup, limit, device.name, kib, before)
        for fact in facts:
            console.say(fact)
        return facts, alternate(modes, repeats, lambda mode: cold_run(setup, mode, limit))


def measure_resident(setup: Setup, repeats: int) -> tuple[list[str], list[Run]]:
    """Compare streaming off with the unpatched build, all in memory and warm."""
    needed = 2 * setup.size  # the file's pages and a repacked copy of it
    free = psutil.virtual_memory().available
    if free < needed:
        raise ModelError(
            "the model does not fit in memory twice, so it would not stay resident",
            evidence=[f"{free / GB:.1f} GB available, {needed / GB:.1f} GB needed"],
            hint="--model with a smaller one",
        )
    facts = [
        bench_setup.machine(),
        f"model: {setup.model.name}, {setup.size / GB:.2f} GB, resident; default flags",
        f"llama-bench, 64-token prompt (tok/s in column prompt), {setup.tokens} tokens generated, "
        f"{setup.threads} threads; medians",
    ]
    for fact in facts:
        console.say(fact)
    resident_run(setup, RESIDENT_MODES[0])
    return facts, alternate(RESIDENT_MODES, repeats, lambda mode: resident_run(setup, mode))


def parse_variant(text: str) -> Mode:
    """Return the mode that NAME=MODE:KEY=VALUE[,KEY=VALUE...] describes. Raises UsageError."""
    match = re.fullmatch(r"([\w-]+)=([\w-]+):(\w+=[^,]*(?:,\w+=[^,]*)*)", text)
    origin = next((mode for mode in MODES if match and mode.name == match[2]), None)
    if not match or not origin:
        raise UsageError(
            f"--variant {text} is not NAME=MODE:KEY=VALUE",
            hint=f"MODE is one of {', '.join(mode.name for mode in MODES)}",
        )
    env = dict(item.split("=", 1) for item in match[3].split(","))
    return replace(origin, name=match[1], env=env)


def report(
    name: str, facts: list[str], runs: list[Run], notes: list[str], json_file: Path | None
) -> str:
    """Print the table and ratios, write the JSON, and return the Markdown section."""
    rows = table(runs)
    for line in [*as_text(rows), *notes]:
        click.echo(line)
    if json_file:
        data = {"facts": facts, "runs": [asdict(run) for run in runs], "ratios": notes}
        paths.atomic_write_text(json_file, json.dumps(data, indent=2) + "\n")
    return as_markdown(name, facts, rows, notes)


FILE = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
NAMES = [mode.name for mode in MODES]


@click.command(context_settings={"show_default": True})
@click.option("--resident", is_flag=True, help="Compare streaming off with unpatched, all in RAM.")
@click.option("-m", "--model", type=FILE, help="GGUF file, instead of a generated one.")
@click.option("--preset", type=click.Choice(list(models.PRESETS)), default="qwen3-30b-layers")
@click.option("--patched", type=FOLDER, help="Patched programs [the last swapmoe build].")
@click.option("--base", type=FOLDER, help="Unpatched programs [built when needed].")
@click.option("--mode", "chosen", type=click.Choice(NAMES), multiple=True, help="Only these modes.")
@click.option("--variant", "variants", multiple=True, metavar="NAME=MODE:KEY=VALUE")
@click.option("--percent", type=click.FloatRange(1, 1000), default=35.0, help="Memory / file size.")
@click.option("--read-ahead", "kib", type=int, default=128, help="Of the device, in KiB.")
@click.option("--repeats", type=click.IntRange(1), default=3, help="Rounds.")
@click.option("--tokens", type=click.IntRange(2), default=48, help="Tokens to generate.")
@click.option("--threads", type=click.IntRange(1), default=os.cpu_count(), help="Compute threads.")
@click.option("--json", "json_file", type=FILE, help="Write facts and all runs there.")
@click.option("--markdown", type=FILE, help="Put the table into this page.")
def main(
    resident: bool,
    model: Path | None,
    preset: str,
    patched: Path | None,
    base: Path | None,
    chosen: tuple[str, ...],
    variants: tuple[str, ...],
    percent: float,
    kib: int,
    repeats: int,
    tokens: int,
    threads: int,
    json_file: Path | None,
    markdown: Path | None,
) -> None:
    """Measure the expert I/O modes side by side; needs root for cgroup, caches and read-ahead.

    A run that is killed for want of memory is a result; a patched one that fails is exit code 10.
    """
    signal.signal(signal.SIGTERM, bench_setup.interrupt)
    try:
        modes = [mode for mode in MODES if not chosen or mode.name in chosen]
        modes += [parse_variant(text) for text in variants]
        setup = make_setup(model, preset, base, patched, threads=threads, tokens=tokens)
        if resident:
            name, reference = "bench-resident", RESIDENT_MODES[0].name
            facts, runs = measure_resident(setup, repeats)
            notes = ratios(runs, reference) + ratios(runs, reference, "prompt")
        else:
            name = "bench-modes"
            facts, runs = measure_streaming(setup, modes, repeats, percent, kib)
            notes = ratios(runs, REFERENCE)
        section = report(name, facts, runs, notes, json_file)
        if markdown:
            put_section(markdown, name, section)
        own = {mode.name for mode in (*modes, *RESIDENT_MODES) if mode.patched}
        failed = [run for run in runs if run.mode in own and run.outcome != "ok"]
        if failed:
            raise LaunchError(f"{len(failed)} patched runs failed: {failed[0].outcome}")
    except SwapmoeError as error:
        console.print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        console.say("interrupted; memory group and read-ahead are as they were")
        sys.exit(130)


if __name__ == "__main__":
    main()
