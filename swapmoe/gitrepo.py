"""The one seam to git: GitPython's command wrapper in a clean, pinned environment.

User and system settings are off, ``GIT_*`` is stripped and every setting that could change a
result is pinned per call, so that the same commands give the same trees on every machine.
"""

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from swapmoe.errors import ToolError, UpstreamError
from swapmoe.run import shell_quote

if TYPE_CHECKING:
    from git import Git

IDENTITY = "swapmoe"
EMAIL = "swapmoe@localhost"
FIXED_DATE = "1767225600 +0000"

_NO_HOOKS = os.devnull
_PINNED = (
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.quotePath=false",
    f"core.hooksPath={_NO_HOOKS}",
    f"core.attributesFile={os.devnull}",
    f"core.excludesFile={os.devnull}",
    "core.fsmonitor=false",
    "core.longpaths=true",
    "core.filesRefLockTimeout=10000",
    "core.packedRefsTimeout=10000",
    "apply.whitespace=nowarn",
    "apply.ignoreWhitespace=no",
    "color.ui=false",
    "commit.gpgsign=false",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "diff.renames=false",
    "diff.algorithm=myers",
    "diff.context=3",
    "diff.interHunkContext=0",
    "diff.suppressBlankEmpty=false",
    "diff.indentHeuristic=true",
    "advice.detachedHead=false",
    "fetch.unpackLimit=1",
    "gc.auto=0",
    "maintenance.auto=false",
    "merge.verifySignatures=false",
    "merge.renames=true",
    "merge.directoryRenames=false",
    "merge.conflictStyle=merge",
    "init.defaultBranch=main",
    "http.lowSpeedLimit=1",
    "http.lowSpeedTime=30",
    "protocol.file.allow=always",
    "submodule.recurse=false",
)
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_AUTHOR_NAME": IDENTITY,
    "GIT_AUTHOR_EMAIL": EMAIL,
    "GIT_AUTHOR_DATE": FIXED_DATE,
    "GIT_COMMITTER_NAME": IDENTITY,
    "GIT_COMMITTER_EMAIL": EMAIL,
    "GIT_COMMITTER_DATE": FIXED_DATE,
    "LC_ALL": "C",
    "TZ": "UTC",
}
_environment_lock = threading.Lock()


class GitFailed(UpstreamError):
    """A git command that had to succeed did not."""


@dataclass(frozen=True)
class Result:
    """What a git command printed and how it ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as text without the last newline."""
        return self.out.decode("utf-8", "surrogateescape").removesuffix("\n")

    @property
    def items(self) -> list[str]:
        """The NUL-terminated entries of standard output."""
        return [item for item in self.out.decode("utf-8", "surrogateescape").split("\0") if item]


@dataclass(frozen=True)
class GitRepo:
    """A git work tree at ``path``; ``env`` is added to each of its commands."""

    path: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        *args: str | Path,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float | None = None,
        on_percent: Callable[[int], None] | None = None,
    ) -> Result:
        """Run one git command in the work tree; after ``timeout`` seconds it is killed.

        ``on_percent`` is told how much has been received, for a fetch with ``--progress``.
        Raises GitFailed when it fails and ``check`` is set, and ToolError when git is missing.
        """
        command = ["git"]
        for setting in (*_PINNED, f"safe.directory={self.path}"):
            command += ["-c", setting]
        command += [str(arg) for arg in args]
        extra = {**self.env, **(env or {})}
        result = _execute(self.path, command, stdin, extra, timeout, on_percent)
        if check and result.code != 0:
            shown = shell_quote(["git", *[str(arg) for arg in args]])
            raise GitFailed(
                f"git {args[0]} failed",
                evidence=[f"command: {shown}", f"folder: {self.path}", *result.err.splitlines()],
            )
        return result

    def rev(self, name: str) -> str | None:
        """The full id of an object name, or None when it does not exist."""
        result = self.run("rev-parse", "--verify", "--quiet", "--end-of-options", name, check=False)
        return result.text if result.code == 0 else None

    def tree_of(self, commit: str) -> str | None:
        """The tree id of a commit, or None when the commit is not here."""
        return self.rev(f"{commit}^{{tree}}")

    def blobs(self, tree: str, paths: Iterable[str]) -> dict[str, str]:
        """Blob ids of those ``paths`` that exist as files in ``tree``."""
        wanted = sorted(set(paths))
        if not wanted:
            return {}
        listed = self.run("ls-tree", "-r", "-z", "--full-tree", tree, "--", *wanted).items
        found: dict[str, str] = {}
        for entry in listed:
            facts, path = entry.split("\t", 1)
            found[path] = facts.split(" ")[2]
        return {path: found[path] for path in wanted if path in found}

    def hash_files(self, paths: Sequence[Path], *, write: bool = False) -> list[str]:
        """Blob ids of files on disk, byte for byte; ``write`` stores the objects."""
        if not paths:
            return []
        names = "".join(f"{path}\n" for path in paths).encode("utf-8", "surrogateescape")
        flags = ["-w"] if write else []
        return self.run(
            "hash-object", *flags, "--no-filters", "--stdin-paths", stdin=names
        ).text.split("\n")

    def git_path(self, name: str) -> Path:
        """Where ``name`` lies in the git folder."""
        return (self.path / self.run("rev-parse", "--git-path", name).text).resolve()

    @contextmanager
    def scratch(self, *, keep_objects: bool = False) -> Iterator["GitRepo"]:
        """This repository with an index of its own; new objects vanish unless ``keep_objects``."""
        with tempfile.TemporaryDirectory(prefix="swapmoe-git-") as folder:
            env = {**self.env, "GIT_INDEX_FILE": str(Path(folder, "index"))}
            if not keep_objects:
                objects = Path(folder, "objects")
                objects.mkdir()
                env["GIT_OBJECT_DIRECTORY"] = str(objects)
                env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(self.git_path("objects"))
            yield replace(self, env=env)


def open_checkout(path: Path) -> GitRepo:
    """The git work tree whose top level is ``path``.

    Raises UpstreamError when ``path`` is not one, also when it only lies inside one.
    """
    path = path.resolve()
    repo = GitRepo(path)
    if path.is_dir():
        top = repo.run("rev-parse", "--show-toplevel", check=False)
        if top.code == 0 and Path(top.text).resolve() == path:
            return repo
    raise UpstreamError(
        f"not the top of a git checkout: {path}",
        evidence=[
            "the series is applied through git, which ignores folders inside another project"
        ],
        hint="swapmoe fetch --source PATH   # makes a checkout from a plain folder",
    )


def init(path: Path) -> GitRepo:
    """Make an empty repository with its line-ending setting pinned."""
    path.mkdir(parents=True, exist_ok=True)
    repo = GitRepo(path)
    repo.run("init", "--quiet", "--template=", ".")
    repo.run("config", "core.autocrlf", "false")
    return repo


def _execute(
    folder: Path,
    command: Sequence[str],
    stdin: bytes | None,
    extra: Mapping[str, str],
    timeout: float | None,
    on_percent: Callable[[int], None] | None,
) -> Result:
    wrapper = _load()
    environment = {**_ENVIRONMENT, "GIT_CEILING_DIRECTORIES": str(folder.parent), **extra}
    with tempfile.TemporaryFile() as feed:
        feed.write(stdin or b"")
        feed.seek(0)
        with _without_git_variables():
            started = wrapper(folder).execute(
                list(command), istream=feed, as_process=True, env=environment
            )
        process = started.proc
        assert process is not None
        assert process.stderr is not None
        watch = threading.Timer(timeout or 0, _end_tree, (process.pid,))
        try:
            if timeout is not None:
                watch.start()
            err = _follow(process.stderr, on_percent) if on_percent else b""
            out, rest = process.communicate()
        except BaseException:
            _end_tree(process.pid)
            raise
        finally:
            expired = timeout is not None and watch.finished.is_set()
            watch.cancel()
    text = (err + rest).decode("utf-8", "replace")
    if expired:
        text += f"no answer within {timeout:g} seconds\n"
    return Result(process.returncode, out, text)


def _follow(stream: IO[bytes], on_percent: Callable[[int], None]) -> bytes:
    """Read git's progress output to its end, report percentages, return the other lines."""
    kept = b""
    for line in iter(lambda: _read_piece(stream), b""):
        found = re.match(rb"Receiving objects:\s+(\d+)%", line)
        if found:
            on_percent(int(found[1]))
        elif line.endswith(b"\n"):
            kept += line
    return kept


def _read_piece(stream: IO[bytes]) -> bytes:
    piece = b""
    while not piece.endswith((b"\r", b"\n")):
        byte = stream.read(1)
        if not byte:
            break
        piece += byte
    return piece


def _end_tree(pid: int) -> None:
    """Kill git and the helpers it started, which would keep the pipes open."""
    import psutil

    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()


@contextmanager
def _without_git_variables() -> Iterator[None]:
    """GitPython copies this process's environment: hide inherited ``GIT_*`` meanwhile."""
    with _environment_lock:
        hidden = {key: value for key, value in os.environ.items() if key.startswith("GIT_")}
        for key in hidden:
            del os.environ[key]
        try:
            yield
        finally:
            os.environ.update(hidden)


def _load() -> "type[Git]":
    if shutil.which("git") is None:
        raise ToolError(
            "program not found: git",
            evidence=["the llama.cpp source and the patch series are handled with git"],
            hint="install git, then run the same command again",
        )
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    with _without_git_variables():
        from git import Git
    return Git
