"""``swapmoe patch``: thin commands over series, lint and apply."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from swapmoe.gitrepo import GitRepo
    from swapmoe.pins import Pin

_pin = click.option("--pin", metavar="TAG", help="Pin to use (default: patches/PIN).")
_tree = click.option(
    "--tree",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A git checkout of your own instead of the tool's.",
)
_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
_source = click.option(
    "--source",
    default="auto",
    metavar="auto|git|archive|PATH",
    help="Where llama.cpp comes from when it is not there yet.",
)


@click.group()
def patch() -> None:
    """Show, check and apply the patch series."""


@patch.command()
@_pin
@_tree
@_json
def status(pin: str | None, tree: Path | None, as_json: bool) -> None:
    """Say whether a checkout is clean, applied, partial, in conflict or outdated."""
    from swapmoe import compose, console, pins, series
    from swapmoe.tree import inspect

    chosen = pins.load(pin)
    repo = _checkout(chosen, tree)
    found = inspect(chosen, repo)
    drift = compose.folder_drift(chosen.manifest, series.read(chosen.series_dir))
    if as_json:
        facts = {"pin": chosen.tag, "path": str(repo.path), "state": found.state}
        detail = {"files": dict(found.files), "problems": list(found.problems), "drift": drift}
        console.emit_json({**facts, "head": found.head, "base": found.base, **detail})
        return
    console.out().print(f"{found.state}: {repo.path}")
    if found.state in ("partial", "conflict"):
        for path, state in found.files.items():
            console.out().print(f"  {path}: {state}")
    for problem in found.problems:
        console.out().print(f"  {problem}")
    for line in drift:
        console.note(f"not as in the manifest: {line}")


@patch.command()
@_pin
@_tree
@_source
@click.option("--force", is_flag=True, help="First reset the tool's own checkout to the pin.")
def apply(pin: str | None, tree: Path | None, source: str, force: bool) -> None:
    """Apply the series: everything, or nothing is changed."""
    from swapmoe import apply, console, paths, pins, upstream
    from swapmoe.errors import UsageError
    from swapmoe.gitrepo import open_checkout

    if tree and force:
        raise UsageError("--force only resets the tool's own checkout, never --tree")
    chosen = pins.load(pin)
    path = tree or upstream.ensure_source(chosen, source)
    with upstream.disk_errors(path), paths.lock(paths.source_dir(chosen.manifest.upstream.tag)):
        repo = open_checkout(path)
        before = apply.apply(chosen, repo, own=tree is None, force=force)
        done = apply.verify(chosen, repo)
    said = "was applied already" if before.state == "applied" else "applied"
    console.out().print(f"{chosen.tag} {said}: {done.path} (tree {done.tree_id})")


@patch.command()
@_pin
@_tree
@_json
def verify(pin: str | None, tree: Path | None, as_json: bool) -> None:
    """Prove that a checkout is the recorded patched tree, byte for byte."""
    from swapmoe import apply, console, pins

    chosen = pins.load(pin)
    done = apply.verify(chosen, _checkout(chosen, tree))
    if as_json:
        console.emit_json(
            {"pin": chosen.tag, "path": str(done.path), "tree": done.tree_id, "head": done.commit}
        )
        return
    console.out().print(f"verified: {done.path} is tree {done.tree_id}")


@patch.command()
@_pin
@_json
def lint(pin: str | None, as_json: bool) -> None:
    """Check the series against its rules and count the hook lines."""
    from swapmoe import console, lint, pins
    from swapmoe.errors import SeriesError
    from swapmoe.gitrepo import GitRepo
    from swapmoe.tree import PRISTINE_REF

    tag = pin or pins.default_tag()
    folder = pins.patches_dir() / tag
    if not folder.is_dir():
        folder = pins.load(pin).series_dir
    repo = _pristine_if_present(folder)
    report = lint.lint(folder, repo, PRISTINE_REF if isinstance(repo, GitRepo) else None)
    if as_json:
        console.emit_json(
            {
                "pin": folder.name,
                "findings": [vars(finding) for finding in report.findings],
                "hook_lines": {"added": report.added, "removed": report.removed},
                "files": {
                    path: {"added": added, "removed": removed}
                    for path, (added, removed) in report.hooks.items()
                },
            }
        )
    else:
        for path, (added, removed) in report.hooks.items():
            console.out().print(f"{path}: +{added} -{removed}")
        count = f"{report.added} added, {report.removed} removed in {len(report.hooks)} files"
        console.out().print(f"hook lines: {count}")
    if repo is None:
        console.note("no source here: blobs and tree id were not recomputed (swapmoe fetch)")
    if report.findings:
        raise SeriesError(
            f"{len(report.findings)} findings in the series {folder.name}",
            evidence=[f"{item.rule} {item.where}: {item.text}" for item in report.findings],
            hint="the rules are in patches/README.md",
        )


@patch.command()
@click.argument("name", required=False)
@_pin
@_json
def show(name: str | None, pin: str | None, as_json: bool) -> None:
    """List the series and what each patch does to which file, or print one patch."""
    from swapmoe import console, pins, series
    from swapmoe.errors import UsageError

    found = series.read(pins.load(pin).series_dir)
    if name:
        wanted = [p for p in found.patches if p.name in (name, f"{name}.patch")]
        if not wanted:
            names = [p.name for p in found.patches]
            raise UsageError(f"no such patch: {name}", evidence=names, hint="swapmoe patch show")
        click.echo(wanted[0].data, nl=False)
        return
    patches: list[dict[str, Any]] = [
        {
            "patch": p.name,
            "subject": p.subject,
            "files": [
                {"path": c.path, "kind": c.kind, "added": c.added, "removed": c.removed}
                for c in p.changes
            ],
        }
        for p in found.patches
    ]
    overlay = [{"path": f.path, "bytes": len(f.data)} for f in found.overlay]
    if as_json:
        console.emit_json({"overlay": overlay, "patches": patches})
        return
    for file in overlay:
        console.out().print(f"overlay  {file['path']}  {file['bytes']} bytes")
    for entry in patches:
        console.out().print(f"{entry['patch']}  {entry['subject']}")
        for item in entry["files"]:
            counts = f"+{item['added']} -{item['removed']}"
            console.out().print(f"    {item['kind']}  {item['path']}  {counts}")


@patch.command()
@_pin
@_source
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False))
def export(pin: str | None, source: str, output: Path | None) -> None:
    """Write the whole series as one patch for plain `git apply`."""
    from swapmoe import apply, pins, upstream
    from swapmoe.console import say
    from swapmoe.gitrepo import open_checkout
    from swapmoe.tree import PRISTINE_REF

    chosen = pins.load(pin)
    repo = open_checkout(upstream.ensure_source(chosen, source))
    data = apply.export(chosen, repo, PRISTINE_REF)
    if output is None:
        click.echo(data, nl=False)
        return
    output.write_bytes(data)
    say(f"wrote {output} ({len(data)} bytes); apply with: git apply {output.name}")


@patch.command()
@_pin
@_source
@click.option("--commit", metavar="ID", help="New pin only: full commit id.")
@click.option("--archive-sha256", metavar="HEX", help="New pin only: hash of the source archive.")
def refresh(pin: str | None, source: str, commit: str | None, archive_sha256: str | None) -> None:
    """Write the manifest anew from overlay and patches, applied to the pristine pin.

    Without --commit, the pins that share its overlay are refreshed too.
    """
    from swapmoe import apply, console, pins, series, upstream
    from swapmoe.gitrepo import open_checkout
    from swapmoe.tree import PRISTINE_REF

    tag = pin or pins.default_tag()
    folder = pins.patches_dir() / tag
    if commit or archive_sha256:
        facts = pins.new_upstream(tag, commit or "", archive_sha256 or "")
    else:
        folder = pins.load(pin).series_dir
        facts = pins.read_manifest(folder).upstream
    todo = [(folder, facts, source)]
    for other in pins.known_tags():
        there = pins.patches_dir() / other
        shares = series.overlay_dir(there).resolve() == series.overlay_dir(folder).resolve()
        if shares and there != folder and not commit:
            todo.append((there, pins.read_manifest(there).upstream, "auto"))
    for there, upstream_facts, origin in todo:
        repo = open_checkout(upstream.ensure(upstream_facts, origin, {}))
        manifest = apply.refresh(there, upstream_facts, repo, PRISTINE_REF)
        count = f"{len(manifest.file)} files"
        console.out().print(f"{there.name}: tree {manifest.series.tree}, {count}")


def _checkout(chosen: "Pin", tree: Path | None) -> "GitRepo":
    from swapmoe import paths
    from swapmoe.errors import UpstreamError
    from swapmoe.gitrepo import open_checkout

    path = tree or paths.source_dir(chosen.manifest.upstream.tag)
    if not path.exists():
        raise UpstreamError(
            f"llama.cpp {chosen.tag} is not here yet",
            evidence=[f"no folder {path}"],
            hint=f"swapmoe patch apply --pin {chosen.tag}",
        )
    return open_checkout(path)


def _pristine_if_present(folder: Path) -> "GitRepo | None":
    from swapmoe import paths, pins
    from swapmoe.errors import SeriesError
    from swapmoe.gitrepo import open_checkout

    try:
        path = paths.source_dir(pins.read_manifest(folder).upstream.tag)
    except SeriesError:
        return None
    return open_checkout(path) if path.exists() else None
