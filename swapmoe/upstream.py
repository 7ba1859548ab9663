"""Getting llama.cpp at a pin: from git, from the source archive, or from a local copy."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from swapmoe import archive, console, gitrepo, index, paths, tree
from swapmoe.errors import UpstreamError, UsageError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin, Upstream

_PROBE_SECONDS = 20.0


def ensure_source(
    pin: Pin, source: str = "auto", *, path: Path | None = None, force: bool = False
) -> Path:
    """The tool's own git checkout of ``pin``; made from ``source`` when it is not there yet.

    ``source`` is "auto" (git, then the archive; the variable SWAPMOE_SOURCE replaces it), "git",
    "archive", or the path of a clone, a folder or an archive; ``path`` means the latter. ``force``
    makes a damaged checkout anew and keeps ``build*`` and ``*.gguf`` in it.
    Raises UpstreamError; a failed attempt leaves nothing behind but a resumable download.
    """
    before = {file.path: file.before for file in pin.manifest.file}
    return ensure(pin.manifest.upstream, str(path) if path else source, before, force=force)


def ensure(
    facts: Upstream, source: str, before: Mapping[str, str | None], *, force: bool = False
) -> Path:
    """Like ``ensure_source`` for an upstream that may have no manifest yet."""
    if source == "auto":
        source = os.environ.get("SWAPMOE_SOURCE") or "auto"
    target = paths.source_dir(facts.tag)
    with disk_errors(target), paths.lock(target):
        if force or not target.exists():
            _make(facts, source, before, target)
        elif not _is_pin(GitRepo(target), tree.PRISTINE_REF, facts):
            raise UpstreamError(
                f"the checkout of {facts.tag} is damaged or of another commit: {target}",
                evidence=[f"{tree.PRISTINE_REF} is not {facts.source_id}"],
                hint="swapmoe fetch --force   # makes it anew; keeps build* and *.gguf",
            )
    return target


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a full disk or a missing permission into an UpstreamError that names ``folder``."""
    try:
        yield
    except OSError as error:
        raise UpstreamError(
            f"cannot work in {folder}",
            evidence=[str(error)],
            hint="free some space (about 1 GB) or set SWAPMOE_CACHE_DIR to another disk",
        ) from error


def fetch_git(repo: GitRepo, url: str, facts: Upstream) -> str:
    """Fetch the pin by its full id, or by its tag where that is refused; return the commit.

    Raises UpstreamError when ``url`` cannot be reached or does not have that commit.
    """
    tag = f"refs/tags/{facts.tag}"
    listed = repo.run("ls-remote", "--", url, tag, f"{tag}^{{}}", timeout=_PROBE_SECONDS).text
    tagged = listed.splitlines()[-1].split("\t")[0] if listed else None
    if tagged is not None and facts.commit not in (None, tagged):
        console.note(f"{facts.tag} is {tagged} there; taking the recorded {facts.commit}")
    for wanted in filter(None, (facts.commit, tag)):
        with console.progress("receiving (percent)", 100, unit="steps") as advance:
            result = repo.run(
                *("fetch", "--progress", "--depth=1", "--no-tags", "--", url, wanted),
                check=False,
                on_percent=advance,
            )
        fetched = repo.rev("FETCH_HEAD^{commit}") if result.code == 0 else None
        if fetched is not None and _is_fetched(repo, fetched, facts):
            return fetched
    raise UpstreamError(
        f"commit not found: {facts.commit or facts.tag}",
        evidence=[f"asked: {url}", f"{facts.tag} there: {tagged}", *result.err.splitlines()],
        hint="swapmoe fetch --source archive",
    )


def _is_fetched(repo: GitRepo, commit: str, facts: Upstream) -> bool:
    if facts.commit is None:
        return repo.tree_of(commit) == facts.tree
    return commit == facts.commit


def _make(facts: Upstream, source: str, before: Mapping[str, str | None], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    for left_over in target.parent.glob(f".{facts.tag}.*"):
        shutil.rmtree(left_over, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{facts.tag}.", dir=target.parent))
    try:
        repo, commit, taken = _from(source, facts, scratch)
        _check(repo, commit, facts, before)
        repo.run("update-ref", tree.PRISTINE_REF, commit)
        repo.run("checkout", "--quiet", "--force", "--detach", commit)
        tree_id = repo.tree_of(commit)
        _install(repo, target)
        paths.write_receipt(
            target,
            {"schema": 1, "tag": facts.tag, "commit": facts.commit, "tree": tree_id, **taken},
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _install(repo: GitRepo, target: Path) -> None:
    if not target.exists():
        repo.path.rename(target)
        return
    shutil.rmtree(target / ".git", ignore_errors=True)
    (repo.path / ".git").rename(target / ".git")
    tree.reset_own(GitRepo(target))


def _from(source: str, facts: Upstream, scratch: Path) -> tuple[GitRepo, str, dict[str, str]]:
    """The repository made in ``scratch``, the commit, and what the receipt says about it."""
    if source == "git":
        return _from_git(facts, scratch)
    if source == "archive":
        return _from_index(facts, scratch)
    if source != "auto":
        return _from_path(Path(source).expanduser().absolute(), facts, scratch)
    try:
        return _from_git(facts, scratch)
    except UpstreamError as error:
        reason = next((line for line in reversed(error.evidence) if line), error.message)
        console.note(f"git is not usable here ({reason}); taking the source archive instead")
        try:
            return _from_index(facts, scratch)
        except UpstreamError as second:
            raise UpstreamError(
                f"no source for llama.cpp {facts.tag}",
                evidence=[f"git: {reason}", f"archive: {second.message}", *second.evidence],
                hint="swapmoe fetch --source PATH   # a clone, a folder or an archive",
            ) from second


def _from_git(facts: Upstream, scratch: Path) -> tuple[GitRepo, str, dict[str, str]]:
    url = f"https://github.com/{facts.project}"
    console.say(f"fetching llama.cpp {facts.tag} from {url}")
    repo = gitrepo.init(scratch / "git")
    return repo, fetch_git(repo, url, facts), {"source": "git", "url": url}


def _from_index(facts: Upstream, scratch: Path) -> tuple[GitRepo, str, dict[str, str]]:
    if facts.archive is None or facts.archive_sha256 is None:
        raise UpstreamError(f"no source archive is recorded for {facts.tag}")
    console.say(f"fetching {facts.archive} from the package index")
    return _from_archive(index.get_archive(facts.archive, facts.archive_sha256), facts, scratch)


def _from_archive(
    file: Path, facts: Upstream, scratch: Path
) -> tuple[GitRepo, str, dict[str, str]]:
    taken = {"source": "archive"}
    if facts.archive_sha256 is not None:
        archive.check_hash(file, facts.archive_sha256)
        taken["archive_sha256"] = facts.archive_sha256
    folder = scratch / "archive"
    count = archive.unpack(file, folder)
    console.say(f"unpacked {count} files")
    repo = gitrepo.init(folder)
    return repo, _commit_all(repo, facts), taken


def _from_path(path: Path, facts: Upstream, scratch: Path) -> tuple[GitRepo, str, dict[str, str]]:
    taken = {"source": "path", "path": str(path)}
    if path.is_file():
        return _from_archive(path, facts, scratch)
    if not path.is_dir():
        raise UsageError(
            f"no such source: {path}",
            evidence=["expected auto, git, archive, or the path of a clone, folder or archive"],
        )
    if (path / ".git").exists() or (path / "HEAD").is_file():
        commit = _commit_there(GitRepo(path), facts)
        repo = gitrepo.init(scratch / "git")
        repo.run("fetch", "--quiet", "--depth=1", "--no-tags", "--", path.as_uri(), commit)
        return repo, commit, taken
    folder = scratch / "folder"
    shutil.copytree(path, folder, symlinks=True, ignore=shutil.ignore_patterns("build", ".git"))
    repo = gitrepo.init(folder)
    return repo, _commit_all(repo, facts), taken


def _commit_there(there: GitRepo, facts: Upstream) -> str:
    names = [*filter(None, [facts.commit]), f"refs/tags/{facts.tag}^{{commit}}"]
    if facts.tree is not None:
        names += [tree.PRISTINE_REF, "HEAD"]
    for name in names:
        if _is_pin(there, name, facts):
            commit = there.rev(name)
            assert commit is not None
            return commit
    raise UpstreamError(
        f"{there.path} does not have llama.cpp {facts.tag}",
        evidence=[f"looked for commit {facts.commit} and tree {facts.tree}"],
        hint=f"git -C {there.path} fetch origin {facts.commit or facts.tag}",
    )


def _is_pin(repo: GitRepo, name: str, facts: Upstream) -> bool:
    tree_id = repo.tree_of(name)
    if tree_id is None:
        return False
    return facts.tree in (None, tree_id) or repo.rev(f"{name}^{{commit}}") == facts.commit


def _commit_all(repo: GitRepo, facts: Upstream) -> str:
    repo.run("add", "--all", "--force", "--", ".")
    message = f"llama.cpp {facts.tag}\n\nThe files of {facts.project} at {facts.source_id}.\n"
    commit_tree = ("commit-tree", repo.run("write-tree").text)
    return repo.run(*commit_tree, stdin=message.encode()).text


def _check(repo: GitRepo, commit: str, facts: Upstream, before: Mapping[str, str | None]) -> None:
    tree_id = repo.tree_of(commit)
    blobs = repo.blobs(commit, before)
    wrong = [
        f"{path}: blob {blobs.get(path)}, recorded {blob}"
        for path, blob in before.items()
        if blobs.get(path) != blob
    ]
    if not _is_pin(repo, commit, facts):
        wrong.insert(0, f"tree id {tree_id}, recorded {facts.tree}")
    if wrong:
        raise UpstreamError(
            f"the source is not llama.cpp {facts.tag}",
            evidence=wrong[:20],
            hint="use an untouched copy: swapmoe fetch --source git or --source archive",
        )
    if facts.tree not in (None, tree_id):
        console.note(f"tree id {tree_id} of commit {commit} is not the archive's {facts.tree}")
