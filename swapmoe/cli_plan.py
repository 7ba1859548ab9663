"""``swapmoe inspect`` and ``swapmoe plan``: thin commands, no logic."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from swapmoe.plan import Plan


def _check_model(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not value:
        raise click.BadParameter("the path is empty")
    return value


_model = click.argument("model", callback=_check_model)
_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")


def _size(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    from swapmoe import sizes

    try:
        size = None if value is None else sizes.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}") from None
    if size == 0:
        raise click.BadParameter("must be more than 0")
    return size


def _rate(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    return _size(context, parameter, None if value is None else value.removesuffix("/s"))


def _calibrate(made: "Plan", pin: str | None, limit: int | None, threads: int | None) -> None:
    from swapmoe import bench_setup, calibrate, console, gguf_info, toolchain
    from swapmoe.stream_bench import Bench

    model = gguf_info.inspect(made.model.path)
    program = bench_setup.patched_build(pin) / "llama-bench"
    bench = Bench(program, model.path, threads or toolchain.cores())
    console.say("measuring: decoding random tokens twice, for about a minute")
    found = calibrate.calibrate(model, bench, limit, made.speed.expected if made.speed else None)
    found.record()
    console.say(f"measured: {found.summary}")


@click.command()
@_model
@_json
def inspect(model: str, as_json: bool) -> None:
    """Show what a model's header says: bytes, experts, slices, context.

    MODEL is a GGUF file, any shard of one, or only the first megabytes of one.
    """
    from swapmoe import console, gguf_info, inspection

    found = inspection.inspect(gguf_info.inspect(Path(model), header_only=True))
    if as_json:
        console.emit_json(inspection.to_json(found))
        return
    for line in inspection.lines(found):
        console.out().print(line)


@click.command()
@_model
@click.option(
    "--ctx",
    type=click.IntRange(0, 2**31 - 1),
    help="Context in tokens; 0 = the model's own (default: setting run.ctx).",
)
@click.option("--ram", callback=_size, metavar="SIZE", help="For a machine with this much memory.")
@click.option(
    "--memory-limit", callback=_size, metavar="SIZE", help="For a program limited to this much."
)
@click.option(
    "--disk-bw", callback=_rate, metavar="SIZE/s", help="What the disk reads: 500MB/s, 3.5GB/s."
)
@click.option(
    "--kv-type", type=click.Choice(["f16", "q8_0", "q4_0"]), help="Type of keys and values."
)
@click.option(
    "--ubatch",
    type=click.IntRange(1, 65536),
    metavar="N",
    help="Tokens of a prompt that are computed at once.",
)
@click.option(
    "--cores", type=click.IntRange(1, 4096), metavar="N", help="Cores (default: this machine's)."
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="First measure: decode random tokens for about a minute and remember what that shows.",
)
@_json
def plan(
    model: str,
    ctx: int | None,
    ram: int | None,
    memory_limit: int | None,
    disk_bw: int | None,
    kv_type: str | None,
    ubatch: int | None,
    cores: int | None,
    calibrate: bool,
    as_json: bool,
) -> int:
    """Say what will fit, how experts are best read, and how fast that will be.

    MODEL is a GGUF file, any shard of one, or only the first megabytes of one. Nothing is loaded
    without --calibrate. Settings count: run.ctx, and for this machine run.memory_limit and
    run.threads. Exit code 9 when it cannot work.
    """
    from swapmoe import config, console, gguf_info, plan_text
    from swapmoe import plan as planning
    from swapmoe.errors import UsageError

    if calibrate and ram is not None:
        raise UsageError("--calibrate measures this machine, --ram is about another one")
    facts = gguf_info.inspect(Path(model), header_only=True)
    gguf_info.require_streamable(facts)
    settings = config.load().settings
    if ram is None:
        memory_limit = memory_limit or settings.run.memory_limit or None
        cores = cores or settings.run.threads
    ctx = settings.run.ctx if ctx is None else ctx
    options = planning.Options(ctx, ram, memory_limit, disk_bw, kv_type, ubatch, cores)
    made = planning.make(facts, options)
    if calibrate and made.works:
        _calibrate(made, settings.pin, memory_limit, settings.run.threads)
        made = planning.make(facts, options)
    if as_json:
        console.emit_json(plan_text.to_json(made))
    else:
        for line in plan_text.lines(made):
            console.out().print(line)
    return 0 if made.works else 9
