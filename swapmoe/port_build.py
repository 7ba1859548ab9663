"""``port check --build``: compile the merged series and run what has to work with it."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from swapmoe import apply, build, compose, console, demo, pins, port_export, port_store, run, series
from swapmoe.config import RunSettings
from swapmoe.errors import (
    BuildError,
    ConfigError,
    SwapmoeError,
    ToolError,
    UpstreamError,
    UsageError,
)  # fmt: skip
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin
from swapmoe.port_pick import Step
from swapmoe.port_report import Report
from swapmoe.port_target import Target

_TEST_SECONDS = 600.0


def commit_steps(repo: GitRepo, steps: Sequence[Step], target: Target) -> str:
    """The merged patches as commits on the target; returns the last."""
    commit = target.commit
    for step in steps:
        patch = step.pin.patch
        commit = compose.commit_tree(repo, step.tree, commit, patch)
    return commit


def gate(pin: Pin, report: Report, commit: str) -> Report:
    """Build the series ending in ``commit`` and run unit tests and a small model.

    A failure makes the hooks in files that the compiler names ``broken``, and is a problem of the
    target. Raises UsageError for a target without a build number, ToolError without a compiler.
    """
    tag = report.target.tag
    if tag is None:
        raise UsageError(
            "--build needs a build tag: the binaries say which build they are",
            evidence=[f"target: {report.target.name}"],
            hint="--to bNNNN",
        )
    with tempfile.TemporaryDirectory(prefix="swapmoe-port-") as folder:
        rehearsal = _rehearsal(pin, report, commit, tag, Path(folder))
        try:
            _run(rehearsal)
        except SwapmoeError as error:
            if isinstance(error, UsageError | ConfigError | ToolError | UpstreamError):
                raise
            return _broken(report, error)
    return report


def _rehearsal(pin: Pin, report: Report, commit: str, tag: str, folder: Path) -> Pin:
    """The merged series as a pin in a folder of its own."""
    target = report.target
    found = series.read(pin.series_dir)
    shutil.copytree(series.overlay_dir(pin.series_dir), folder / series.OVERLAY)
    known = {patch.subject: patch.name for patch in found.patches}
    facts = pins.new_upstream(tag, target.commit, None)
    with port_store.locked() as store:
        patches, _ = port_export.export(store, target.commit, commit, known)
        port_export.write(folder / tag, patches, f"../{series.OVERLAY}")
        manifest = apply.refresh(folder / tag, facts, store, target.commit)
    return Pin(tag, facts.build_number, manifest.upstream.source_id, folder / tag, manifest)


def _run(pin: Pin) -> None:
    source = str(port_store.store_dir())
    receipt = build.ensure_built(pin, build.BuildOptions(tests=True), source)
    for name in sorted(receipt.files):
        if name.startswith(build.TEST_PREFIX):
            done = run.capture([receipt.program(name)], check=False, timeout=_TEST_SECONDS)
            if done.returncode:
                raise BuildError(
                    f"{name} fails", evidence=(done.stdout + done.stderr).splitlines()[-10:]
                )
    result = demo.demo(pin, build.BuildOptions(), RunSettings(), source)
    console.say(f"gates passed: {result.version_line}, {result.slices} slices streamed")


def _broken(report: Report, error: SwapmoeError) -> Report:
    said = "\n".join((error.message, *error.evidence))
    hooks = tuple(
        replace(hook, verdict="broken", why=error.message)
        if Path(hook.landed_file or hook.file).name in said
        else hook
        for hook in report.hooks
    )
    problem = f"broken: {error.message}"
    return replace(report, hooks=hooks, problems=(*report.problems, problem, *error.evidence[-12:]))
