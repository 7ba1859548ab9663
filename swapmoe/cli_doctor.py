"""``swapmoe doctor``: one thin command."""

from pathlib import Path

import click


@click.command()
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--no-probe", is_flag=True, help="Do not read the model to measure its disk.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@click.option("--pin", metavar="TAG", help="Pin to use (default: patches/PIN).")
def doctor(model: Path | None, no_probe: bool, as_json: bool, pin: str | None) -> int:
    """Look at tools, memory, the build, and where MODEL lies; change nothing.

    Ends with 0, also with warnings; 4 when a tool is missing, 9 when MODEL cannot be used.
    """
    from swapmoe import console, findings
    from swapmoe import doctor as doctoring

    report = doctoring.examine(pin, model, probe=not no_probe)
    if as_json:
        console.emit_json(report.to_json())
    else:
        for line in findings.lines(report.sections):
            console.out().print(line)
    return report.exit_code
