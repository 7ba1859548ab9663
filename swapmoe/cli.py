"""The command line: each command parses, calls one function and prints; no logic here.

Only click is imported at the top so that ``swapmoe --help`` stays fast.
"""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import click

from swapmoe import __version__
from swapmoe.cli_doctor import doctor
from swapmoe.cli_launch import build, config, demo, run, serve
from swapmoe.cli_patch import patch
from swapmoe.cli_plan import inspect, plan
from swapmoe.cli_port import port
from swapmoe.errors import SwapmoeError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="swapmoe")
def cli() -> None:
    """Run Mixture-of-Experts models larger than RAM with a patched llama.cpp."""


for _command in (build, config, demo, doctor, inspect, patch, plan, port, run, serve):
    cli.add_command(_command)


@cli.command()
@click.option(
    "--source",
    default="auto",
    metavar="auto|git|archive|PATH",
    help="Where llama.cpp comes from; PATH is a clone, a folder or an archive.",
)
@click.option("--pin", metavar="TAG", help="Pin to fetch (default: patches/PIN).")
@click.option("--force", is_flag=True, help="Make a damaged checkout anew.")
def fetch(source: str, pin: str | None, force: bool) -> None:
    """Get llama.cpp at the pin, proven to be that commit's files."""
    from swapmoe import console, pins, upstream

    chosen = pins.load(pin)
    path = upstream.ensure_source(chosen, source, force=force)
    console.out().print(f"llama.cpp {chosen.tag}: {path}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; no traceback reaches the screen."""
    previous = signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        result = cli.main(args=argv, prog_name="swapmoe", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SwapmoeError as error:
        from swapmoe import console

        console.print_error(error)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the last line of defence: log it, keep the screen clean
        return _report_bug(error)
    finally:
        signal.signal(signal.SIGTERM, previous)


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + signal.SIGTERM)


def _report_bug(error: Exception) -> int:
    import tempfile
    import time
    import traceback

    from swapmoe import console, paths

    report = f"swapmoe {__version__}\nargv: {sys.argv}\n\n" + "".join(
        traceback.format_exception(error)
    )
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        log = paths.logs_dir() / name
        log.write_text(report, encoding="utf-8")
    except OSError:
        from pathlib import Path

        log = Path(tempfile.gettempdir()) / f"swapmoe-{name}"
        log.write_text(report, encoding="utf-8")
    console.print_error(
        SwapmoeError(
            "internal error",
            evidence=[f"{type(error).__name__}: {error}", f"log: {log}"],
            hint="report this with the log file; it holds the command line and the traceback",
        )
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
