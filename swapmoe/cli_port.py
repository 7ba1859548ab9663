"""``swapmoe port``: thin commands over checking and moving the series to another llama.cpp."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from swapmoe.port_work import Started

_pin = click.option("--pin", metavar="TAG", help="Pin to start from (default: patches/PIN).")
_to = click.option(
    "--to",
    required=True,
    metavar="bNNNN|COMMIT|latest|PATH",
    help="The other llama.cpp: a tag, a full commit id, a folder, a clone or an archive.",
)
_source = click.option(
    "--source",
    default="auto",
    metavar="auto|git|archive|PATH",
    help="Where tags and commits come from; PATH is a clone.",
)

_name = click.option("--to", metavar="NAME", help="Which port, when several are in progress.")

_file = click.Path(path_type=Path, dir_okay=False)


@click.group()
def port() -> None:
    """Compare and move the patch series to another llama.cpp."""


@port.command()
@_to
@_pin
@_source
@click.option("--build", is_flag=True, help="Also compile the result and run the gates.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@click.option("--annotate", is_flag=True, help="GitHub Actions annotations on stdout.")
@click.option("--junit", type=_file, help="JUnit XML file.")
def check(
    to: str,
    pin: str | None,
    source: str,
    build: bool,
    as_json: bool,
    annotate: bool,
    junit: Path | None,
) -> None:
    """Say for each hook whether it still fits; exit 20 when someone has to look."""
    from swapmoe import console, pins, port_check, port_report
    from swapmoe.errors import DriftFound, UsageError

    if as_json and annotate:
        raise UsageError("--json and --annotate both write to stdout: take one")
    report = port_check.check(pins.load(pin), to, source, build=build)
    if junit is not None:
        junit.write_bytes(port_report.junit(report))
    if as_json:
        console.emit_json(port_report.to_json(report))
    else:
        made = port_report.annotations(report) if annotate else port_report.lines(report)
        for line in made:
            console.out().print(line)
    if not report.clean:
        raise DriftFound(
            f"{len(report.drifted)} of {len(report.hooks)} hooks need a look"
            f" on {report.target.name}",
            evidence=report.problems[:1],
            hint=f"swapmoe port start --to {to}",
        )


@port.command()
@click.option("--from", "first", metavar="bNNNN", help="First build (default: the pin).")
@click.option("--to", "last", default="latest", metavar="bNNNN|latest", help="Last build.")
@_pin
@_source
@click.option("--step", default=1, type=click.IntRange(1), help="Every N-th build, then bisect.")
@click.option("--all", "every", is_flag=True, help="Every build (the same as --step 1).")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@click.option("--csv", type=_file, help="Also write one line for each build and hook.")
@click.option("--html", type=_file, help="Also write a page with a cell for each.")
@click.option("--markdown", type=_file, help="Also write the page for docs, and ports.svg.")
def matrix(
    first: str | None,
    last: str,
    pin: str | None,
    source: str,
    step: int,
    every: bool,
    as_json: bool,
    csv: Path | None,
    html: Path | None,
    markdown: Path | None,
) -> None:
    """Check many builds and say where each hook breaks first."""
    from swapmoe import console, paths, pins, port_matrix, port_table

    if every:
        step = 1
    chosen = pins.load(pin)
    start = first or chosen.manifest.upstream.tag
    found = port_matrix.run(chosen, start, last, source, step=step)
    command = f"swapmoe port matrix --pin {chosen.tag} --from {start} --to {found.tags[-1]}"
    command += f" --step {step}" * (step > 1)
    if csv is not None:
        paths.atomic_write_text(csv, port_table.to_csv(found))
    if html is not None:
        paths.atomic_write_text(html, port_table.to_html(found))
    if markdown is not None:
        command += f" --markdown {markdown}"
        paths.atomic_write_text(markdown, port_table.to_markdown(found, command))
        paths.atomic_write_text(markdown.with_suffix(".svg"), port_table.badge_svg(found))
        console.note(f"for the README: {port_table.badge_markdown(markdown.parent.as_posix())}")
    if as_json:
        console.emit_json(port_matrix.to_json(found))
        return
    for line in port_table.lines(found):
        console.out().print(line)


@port.command()
@_to
@_pin
@_source
@click.option("--force", is_flag=True, help="Throw away a port to the same target, then start.")
def start(to: str, pin: str | None, source: str, force: bool) -> None:
    """Make a work tree with the series cherry-picked; conflicts are left marked."""
    from swapmoe import pins, port_work

    _tell(port_work.start(pins.load(pin), to, source, force=force))


@port.command(name="continue")
@_name
@click.option("--skip", is_flag=True, help="Leave this patch out: upstream has it.")
def resume(to: str | None, skip: bool) -> None:
    """Take the resolved conflict and go on with the next patch."""
    from swapmoe import port_work

    _tell(port_work.resume(port_work.load(to), skip=skip))


def _tell(started: "Started") -> None:
    from swapmoe import console

    out = console.out()
    work = started.work
    name = work.target.name
    out.print(f"{work.pin} -> {name}: {work.path}")
    if started.stopped is None:
        out.print("every patch is in; look at each (git log -p), amend what is wrong, then:")
        out.print(f"  swapmoe port finish --to {name}")
        return
    out.print(f"stopped at: {started.stopped}")
    for path in started.conflicts:
        out.print(f"  conflict in {path}")
    out.print("edit (keep upstream's text, put our lines back in; the part between ||||||| and")
    out.print("======= is what upstream had before), then:")
    out.print(f"  swapmoe port continue --to {name}          # or --skip: upstream has it now")


@port.command()
@_name
@click.option("--tag", metavar="bNNNN", help="Tag of the new pin, when the target has none.")
@click.option("--commit", metavar="ID", help="Upstream's full commit id, when not known.")
@click.option("--forget", is_flag=True, help="Also remove the work tree.")
def finish(to: str | None, tag: str | None, commit: str | None, forget: bool) -> None:
    """Write patches/<tag>/ from the work tree and prove it from nothing."""
    from swapmoe import console, port_finish, port_work

    work = port_work.load(to)
    done = port_finish.finish(work, tag=tag, commit=commit)
    pin = done.pin
    for path in done.overlay_edits:
        console.out().print(f"overlay changed by the port: {path}")
    console.out().print(f"{pin.tag}: {pin.series_dir} (tree {pin.manifest.series.tree})")
    for title in done.unexplained:
        console.note(f"explain in PORTING.md: {title}")
    for text in done.unnamed:
        console.note(text)
    if forget:
        port_work.forget(work)
    console.out().print(f"next: swapmoe build --pin {pin.tag}")
