"""Options that several commands take, each written once."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from swapmoe.build import BuildOptions
    from swapmoe.config import Loaded, Settings

F = TypeVar("F", bound=Callable[..., Any])

pin = click.option("--pin", metavar="TAG", help="Pin to use (default: patches/PIN).")
config = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="Configuration file instead of the user's and ./swapmoe.toml.",
)
source = click.option(
    "--source",
    metavar="auto|git|archive|PATH",
    help="Where llama.cpp comes from when it is not there yet.",
)
jobs = click.option(
    "--jobs", type=click.IntRange(min=1), help="Parallel compilers (default: as memory allows)."
)
portable = click.option(
    "--portable/--native",
    default=None,
    help="For any CPU of this architecture, or for this very one (default).",
)
io = click.option(
    "--io",
    type=click.Choice(["auto", "direct", "mmap", "fault"]),
    help="How routed experts are read.",
)


def _check_size(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """A size as the settings understand it; they turn it into bytes."""
    from swapmoe import sizes

    try:
        if value is not None:
            sizes.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}") from None
    return value


_expert_options = (
    io,
    click.option(
        "--prefetch/--no-prefetch",
        default=None,
        help="Ask for the next layers' experts in the background.",
    ),
    click.option(
        "--fixation",
        type=click.IntRange(min=0),
        metavar="N",
        help="Keep the experts of one pass for N passes (0 = off); changes the answers.",
    ),
    click.option(
        "--keep-recent",
        type=click.IntRange(min=0),
        metavar="N",
        help="Experts per layer that stay in memory after use (0 = no limit).",
    ),
    click.option(
        "--cache-size",
        callback=_check_size,
        metavar="SIZE",
        help="Memory for experts: 512 (MiB), 1.5G, 2GB (0 = no limit).",
    ),
    click.option(
        "--ctx", type=click.IntRange(min=0), help="Context in tokens; 0 = the model's own."
    ),
    click.option(
        "--memory-limit",
        callback=_check_size,
        metavar="SIZE",
        help="Memory the program may use, page cache included (Linux; 0 = no limit).",
    ),
)
threads = click.option("--threads", type=click.IntRange(min=1), help="Compute threads.")
as_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
verbose = click.option(
    "-v", "--verbose", is_flag=True, help="Show the engine's log and statistics."
)
dry_run = click.option("--dry-run", is_flag=True, help="Print the command instead of running it.")


def _check_model(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not value:
        raise click.BadParameter("the path is empty")
    return value


model = click.option(
    "-m",
    "--model",
    required=True,
    metavar="FILE",
    callback=_check_model,
    help="GGUF file; any shard will do.",
)


def expert_settings(command: F) -> F:
    """The options of `run` and `serve` that say how experts are read and kept."""
    for option in reversed(_expert_options):
        command = option(command)
    return command


def load(config_file: Path | None, flags: dict[str, Any]) -> "Loaded":
    """The settings, with what the command line says last. Raises `ConfigError`."""
    from swapmoe import config

    return config.load(flags, config_file=config_file)


def build_options(settings: "Settings", **more: Any) -> "BuildOptions":
    """The options of a build under these settings."""
    from swapmoe.build import BuildOptions

    return BuildOptions(jobs=settings.build.jobs, portable=settings.build.portable, **more)
