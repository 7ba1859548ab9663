"""The store: one git repository of the tool's own with every llama.cpp tree a port looks at.

Checks happen on its objects, without work trees; nobody's checkout is ever touched.
"""

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from swapmoe import archive, gitrepo, paths, tree
from swapmoe.errors import UpstreamError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin

REFS = "refs/swapmoe/builds"
_SKIPPED = (".git", "build")
_SETTINGS = (
    f"user.name={gitrepo.IDENTITY}",
    f"user.email={gitrepo.EMAIL}",
    "commit.gpgsign=false",
    f"core.hooksPath={os.devnull}",
    "merge.conflictStyle=diff3",
    "merge.directoryRenames=false",
    "merge.renames=true",
)

_fetching = threading.Lock()

Entry = tuple[str, str, bytes]
"""Path, git file mode, content."""


def store_dir() -> Path:
    """Where the store lies."""
    return paths.cache_dir() / "port" / "store"


@contextmanager
def locked() -> Iterator[GitRepo]:
    """The store, made when it is not there, with its lock held."""
    path = store_dir()
    with paths.lock(path):
        yield GitRepo(path) if (path / ".git").is_dir() else _make(path)


def _make(path: Path) -> GitRepo:
    """A new store; its settings are for the git commands a user types in a port's work tree."""
    repo = gitrepo.init(path)
    for setting in _SETTINGS:
        repo.run("config", *setting.split("=", 1))
    return repo


def ref_of(name: str) -> str:
    """The reference of a build in the store."""
    return f"{REFS}/{name}"


def add_pin(repo: GitRepo, pin: Pin, checkout: Path) -> str:
    """Take the pin's pristine commit from its checkout; return the commit.

    Raises UpstreamError when the checkout cannot be read.
    """
    ref = ref_of(f"pin-{pin.tag}")
    wanted = GitRepo(checkout).rev(tree.PRISTINE_REF)
    if wanted is None or repo.rev(ref) != wanted:
        fetch(repo, checkout.as_uri(), tree.PRISTINE_REF, ref)
    commit = repo.rev(ref)
    assert commit is not None
    return commit


def fetch(repo: GitRepo, url: str, wanted: str, ref: str) -> str:
    """Fetch one commit, without history, and name it ``ref``; return its id.

    Raises UpstreamError when ``url`` is not reachable or has no such commit.
    """
    # two at once would fight over the list of shallow commits
    with _fetching:
        options = ("--quiet", "--depth=1", "--no-tags", "--force")
        repo.run("fetch", *options, "--", url, f"{wanted}:{ref}")
    commit = repo.rev(f"{ref}^{{commit}}")
    assert commit is not None
    return commit


def add_files(repo: GitRepo, ref: str, entries: Iterable[Entry], message: str) -> str:
    """Commit files under ``ref``, without a parent; the same files give the same commit.

    Contents that the store has already are named by their id: builds share most of them.
    """
    who = f"{gitrepo.IDENTITY} <{gitrepo.EMAIL}> {gitrepo.FIXED_DATE}"
    text = message.encode()
    known = _blobs(repo)
    head = f"reset {ref}\ncommit {ref}\nauthor {who}\ncommitter {who}\ndata {len(text)}\n"
    stream = [head.encode(), text]
    for path, mode, data in entries:
        name = path.encode("utf-8", "surrogateescape")
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        if blob in known:
            stream.append(f"\nM {mode} {blob} ".encode() + name)
        else:
            stream += [b"\nM %s inline %s\ndata %d\n" % (mode.encode(), name, len(data)), data]
    repo.run("fast-import", "--quiet", "--force", stdin=b"".join(stream) + b"\n")
    commit = repo.rev(ref)
    assert commit is not None
    return commit


def _blobs(repo: GitRepo) -> frozenset[str]:
    listed = repo.run(
        "cat-file",
        "--batch-all-objects",
        "--unordered",
        "--batch-check=%(objectname) %(objecttype)",
    ).text
    return frozenset(line[:40] for line in listed.splitlines() if line.endswith(" blob"))


def add_archive(repo: GitRepo, name: str, file: Path) -> str:
    """Commit the llama.cpp files of a source archive. Raises UpstreamError as archive.read."""
    entries = (
        (path.as_posix(), "100755" if executable else "100644", data)
        for path, executable, data in archive.read(file)
    )
    return add_files(repo, ref_of(name), entries, f"llama.cpp {name}\n")


def add_folder(repo: GitRepo, name: str, folder: Path) -> str:
    """Commit the files of a plain folder, without ``build*`` at its top."""
    if not (folder / "CMakeLists.txt").is_file():
        raise UpstreamError(
            f"no llama.cpp source: {folder}", evidence=["there is no CMakeLists.txt in it"]
        )
    return add_files(repo, ref_of(name), _walk(folder), f"llama.cpp {name}\n")


def _walk(folder: Path) -> Iterator[Entry]:
    for top, folders, files in os.walk(folder):
        if Path(top) == folder:
            folders[:] = [name for name in folders if not name.startswith(_SKIPPED)]
        folders.sort()
        for name in sorted(files):
            path = Path(top, name)
            inner = path.relative_to(folder).as_posix()
            if path.is_symlink():
                yield inner, "120000", os.fsencode(path.readlink())
            else:
                mode = "100755" if path.stat().st_mode & 0o111 else "100644"
                yield inner, mode, path.read_bytes()
