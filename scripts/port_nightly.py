"""The nightly check: every pin against the newest llama.cpp, into a folder.

summary.md (for the job's page), issue.md (the template filled in), nightly.csv (one line per pin),
<pin>.json and <pin>.xml of each check, the matrix of the newest pin as ports.{md,svg,csv,html},
and `outputs`: drift=true when hooks of the newest pin need a look, and target=<build>.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from swapmoe import console, pins, port_check, port_matrix, port_report, port_table
from swapmoe.errors import SwapmoeError, UsageError
from swapmoe.port_report import Report

TEMPLATE = Path(__file__).resolve().parent.parent / ".github" / "port-drift.md"
STEP = 8
USAGE = "scripts/port-nightly FOLDER [bNNNN|latest|PATH [auto|git|archive|CLONE]]"


def nightly(folder: Path, to: str, source: str) -> None:
    """Check, and write every file. Raises what the checks raise."""
    folder.mkdir(parents=True, exist_ok=True)
    reports = []
    for tag in sorted(pins.known_tags(), key=lambda tag: pins.load(tag).build_number):
        report = port_check.check(pins.load(tag), to, source)
        text = json.dumps(port_report.to_json(report), indent=2, ensure_ascii=False)
        (folder / f"{tag}.json").write_text(f"{text}\n", encoding="utf-8")
        (folder / f"{tag}.xml").write_bytes(port_report.junit(report))
        reports.append(report)
    newest = reports[-1]
    table = "".join(f"{line}\n" for line in csv_lines(reports))
    (folder / "nightly.csv").write_text(table, encoding="utf-8")
    summary = "\n".join(summary_lines(reports))
    (folder / "summary.md").write_text(f"{summary}\n", encoding="utf-8")
    issue = TEMPLATE.read_text(encoding="utf-8").replace("@TARGET@", newest.target.name)
    (folder / "issue.md").write_text(issue.replace("@SUMMARY@", summary), encoding="utf-8")
    drift = "false" if newest.clean else "true"
    (folder / "outputs").write_text(f"drift={drift}\ntarget={newest.target.name}\n")
    if newest.target.tag:
        write_matrix(folder, newest, source)


def write_matrix(folder: Path, newest: Report, source: str) -> None:
    """Write the table of builds of the newest pin."""
    pin = pins.load(newest.pin)
    name = newest.target.name
    found = port_matrix.run(pin, pin.manifest.upstream.tag, name, source, step=STEP)
    command = f"swapmoe port matrix --pin {pin.tag} --to {name} --step {STEP}"
    (folder / "ports.md").write_text(port_table.to_markdown(found, command), encoding="utf-8")
    (folder / "ports.csv").write_text(port_table.to_csv(found), encoding="utf-8")
    (folder / "ports.html").write_text(port_table.to_html(found), encoding="utf-8")
    (folder / "ports.svg").write_text(port_table.badge_svg(found), encoding="utf-8")


def csv_lines(reports: list[Report]) -> Iterator[str]:
    """Date, pin, target, outcome, files and hooks that need a look."""
    yield "date,pin,target,outcome,files,hooks"
    today = time.strftime("%Y-%m-%d", time.gmtime())
    for report in reports:
        outcome = "clean" if report.clean else max(report.counts, key=_severity)
        files = {hook.file for hook in report.drifted}
        counts = f"{len(files)},{len(report.drifted)}"
        yield f"{today},{report.pin},{report.target.name},{outcome},{counts}"


def _severity(verdict: str) -> int:
    order = ("unchanged", "offset", "merged", "upstreamed", "conflict", "gone", "broken")
    return order.index(verdict)


def summary_lines(reports: list[Report]) -> Iterator[str]:
    """Markdown: counts of each pin, then the hooks of the newest that need a look."""
    yield "| pin | target | hooks |\n| --- | --- | --- |"
    for report in reports:
        counts = ", ".join(f"{number} {verdict}" for verdict, number in report.counts.items())
        yield f"| {report.pin} | {report.target.name} | {counts} |"
    yield ""
    for problem in (*reports[-1].problems, *reports[-1].notes):
        yield f"- {problem}"
    for hook in reports[-1].drifted:
        yield f"- {hook.verdict}: {hook.file} `{hook.function}`: {hook.why or hook.verdict}"


def main(argv: list[str]) -> int:
    """Run; returns the exit code."""
    try:
        if not 1 <= len(argv) <= 3:
            raise UsageError(f"usage: {USAGE}")
        folder, to, source = [*argv, *("", "latest", "auto")[len(argv) :]]
        nightly(Path(folder), to, source)
    except SwapmoeError as error:
        console.print_error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
