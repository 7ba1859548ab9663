"""``swapmoe build``, ``run``, ``serve``, ``demo`` and ``config``: thin commands, no logic."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swapmoe import cli_options as options
from swapmoe.cli_passing import PassingCommand

if TYPE_CHECKING:
    from swapmoe.config import Settings
    from swapmoe.launch import Request


@click.command()
@options.pin
@options.config
@options.source
@options.jobs
@options.portable
@click.option("--with-ui", is_flag=True, help="Build the server's web UI (may need the network).")
@click.option("--target", "targets", multiple=True, metavar="NAME", help="Only this CMake target.")
@click.option("--tests", is_flag=True, help="The C++ unit tests of the overlay too.")
@click.option("--debug", is_flag=True, help="With debug information.")
@click.option("--sanitize", type=click.Choice(["thread", "address"]), help="With this sanitizer.")
@click.option("--force", is_flag=True, help="Skip the compiler check and build although done.")
def build(
    pin: str | None,
    config_file: Path | None,
    source: str | None,
    jobs: int | None,
    portable: bool | None,
    targets: tuple[str, ...],
    **more: Any,
) -> None:
    """Compile the patched llama.cpp; does nothing when nothing changed."""
    from swapmoe import build as builder
    from swapmoe import console, pins

    flags = {"pin": pin, "source": source, "build.jobs": jobs, "build.portable": portable}
    settings = options.load(config_file, flags).settings
    wanted = options.build_options(settings, targets=targets, **more)
    receipt = builder.ensure_built(pins.load(settings.pin), wanted, settings.source)
    console.out().print(str(receipt.bin_dir))


@click.command(cls=PassingCommand)
@options.model
@click.option("-p", "--prompt", help="Text to answer; the program ends after the answer.")
@click.option("--chat", is_flag=True, help="Talk on this terminal instead of -p.")
@click.option("-n", "--n-predict", type=click.IntRange(min=-1), help="Most tokens to generate.")
@options.expert_settings
@options.threads
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Sampling seed.")
@options.verbose
@options.dry_run
@options.as_json
@options.pin
@options.config
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- LLAMA-CLI ARGUMENTS]")
def run(
    model: str,
    prompt: str | None,
    chat: bool,
    verbose: bool,
    dry_run: bool,
    as_json: bool,
    pin: str | None,
    config_file: Path | None,
    extra: tuple[str, ...],
    **settings: Any,
) -> int:
    """Answer a prompt with llama-cli, streaming routed experts from disk."""
    from swapmoe import launch
    from swapmoe.errors import UsageError

    if chat == (prompt is not None):
        raise UsageError("give either -p TEXT or --chat", hint="swapmoe run --help")
    flags = {f"run.{name}": value for name, value in settings.items()}
    loaded = options.load(config_file, {"pin": pin, **flags}).settings
    request = launch.Request(Path(model), prompt, loaded.run, extra, verbose)
    return _launch(request, loaded, dry_run, as_json)


@click.command(cls=PassingCommand)
@options.model
@click.option("--host", help="Address to listen on (default: 127.0.0.1, this machine only).")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="TCP port (default: 8080); 0 = any that is free."
)
@click.option(
    "--start-timeout",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    help="End a server that is not ready after this long (default: 0 = never).",
)
@options.expert_settings
@options.threads
@options.verbose
@options.dry_run
@options.as_json
@options.pin
@options.config
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- LLAMA-SERVER ARGUMENTS]")
def serve(
    model: str,
    host: str | None,
    port: int | None,
    start_timeout: int | None,
    verbose: bool,
    dry_run: bool,
    as_json: bool,
    pin: str | None,
    config_file: Path | None,
    extra: tuple[str, ...],
    **settings: Any,
) -> int:
    """Serve a model with llama-server, streaming routed experts from disk."""
    from swapmoe import launch

    flags = {f"run.{name}": value for name, value in settings.items()}
    flags |= {
        "pin": pin,
        "serve.host": host,
        "serve.port": port,
        "serve.start_timeout": start_timeout,
    }
    loaded = options.load(config_file, flags).settings
    request = launch.Request(Path(model), None, loaded.run, extra, verbose, loaded.serve)
    return _launch(request, loaded, dry_run, as_json)


def _launch(request: "Request", settings: "Settings", dry_run: bool, as_json: bool) -> int:
    from swapmoe import console, launch, pins, start
    from swapmoe.errors import UsageError

    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", hint="add --dry-run")
    plan = launch.prepare(request, pins.load(settings.pin))
    if as_json:
        console.emit_json(plan.to_json())
        return 0
    if dry_run:
        for line in launch.describe(plan):
            console.say(line)
        click.echo(plan.command)
        return 0
    if request.serve is None:
        start.require_terminal_for_chat(request.prompt)
    return start.execute(plan)


@click.command()
@options.pin
@options.config
@options.source
@options.jobs
@options.portable
@options.io
@options.threads
@options.as_json
def demo(
    pin: str | None,
    config_file: Path | None,
    source: str | None,
    jobs: int | None,
    portable: bool | None,
    io: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Fetch, patch, build, generate a small model, run it, and show what happened."""
    from swapmoe import console, pins
    from swapmoe import demo as demonstration

    flags = {"pin": pin, "source": source, "build.jobs": jobs, "build.portable": portable}
    settings = options.load(config_file, {**flags, "run.io": io, "run.threads": threads}).settings
    wanted = options.build_options(settings)
    result = demonstration.demo(pins.load(settings.pin), wanted, settings.run, settings.source)
    if as_json:
        console.emit_json(result.to_json())
        return
    for line in demonstration.describe(result):
        console.out().print(line)


@click.group()
def config() -> None:
    """Look at the settings."""


@config.command()
@options.config
@options.as_json
def show(config_file: Path | None, as_json: bool) -> None:
    """Every setting, its value and where the value comes from."""
    from swapmoe import config as settings
    from swapmoe import console

    rows = settings.rows(options.load(config_file, {}))
    if as_json:
        console.emit_json(
            {name: {"value": value, "origin": origin} for name, value, origin in rows}
        )
        return
    for name, value, origin in rows:
        console.out().print(f"{name} = {_shown(value)}   [{origin}]")


def _shown(value: object) -> str:
    if value is None:
        return "(unset)"
    return str(value).lower() if isinstance(value, bool) else str(value)
