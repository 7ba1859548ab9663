"""The only place where short-lived programs are started: always argv lists, never a shell."""

import os
import shlex
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from swapmoe.errors import SwapmoeError, ToolError

TAIL_LINES = 40
_GRACE_SECONDS = 5.0

Argument = str | Path


@dataclass(frozen=True)
class Completed:
    """A program that ended."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


class CommandFailed(SwapmoeError):
    """A program ended with a non-zero code; ``tail`` holds its last lines."""

    def __init__(self, argv: Sequence[str], returncode: int, tail: Sequence[str]) -> None:
        super().__init__(
            f"{argv[0]} {_describe_exit(returncode)}",
            evidence=[f"command: {shell_quote(argv)}", *tail],
        )
        self.argv = tuple(argv)
        self.returncode = returncode
        self.tail = tuple(tail)


def _describe_exit(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was ended by {name}"


def clean_env(
    extra: Mapping[str, str] | None = None, drop_prefixes: Sequence[str] = ("GIT_",)
) -> dict[str, str]:
    """This process's environment without variables of the given prefixes, plus ``extra``."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(tuple(drop_prefixes))}
    env.update(extra or {})
    return env


def shell_quote(argv: Sequence[Argument], env: Mapping[str, str] | None = None) -> str:
    """One line to paste into this system's shell: ``env`` assignments, then the command."""
    words = [str(word) for word in argv]
    if sys.platform == "win32":
        settings = "".join(f'set "{key}={value}" && ' for key, value in (env or {}).items())
        return settings + subprocess.list2cmdline(words)
    settings = "".join(f"{key}={shlex.quote(value)} " for key, value in (env or {}).items())
    return settings + shlex.join(words)


def capture(
    argv: Sequence[Argument],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> Completed:
    """Run a program to its end with stdin closed and collect its output.

    ``env`` replaces the environment (default: ``clean_env()``); ``timeout`` is in seconds.
    Raises CommandFailed on a non-zero exit when ``check`` is set or on a time-out, and ToolError
    when the program does not exist.
    """
    words = tuple(str(word) for word in argv)
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=dict(env) if env is not None else clean_env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(words, 124, [f"no end after {timeout:g} seconds"]) from error
    except OSError as error:
        raise _cannot_start(words, error) from error
    if check and done.returncode != 0:
        lines = (done.stdout + done.stderr).splitlines()
        raise CommandFailed(words, done.returncode, lines[-TAIL_LINES:])
    return Completed(words, done.returncode, done.stdout, done.stderr)


def stream(
    argv: Sequence[Argument],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> int:
    """Run a program, hand on its merged output line by line and return its exit code.

    ``log`` keeps every line. An exception (Ctrl-C too) ends the program and its children.
    Raises ToolError when the program does not exist.
    """
    process = start(argv, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    try:
        with process.stdout, _LogFile(log) as keep:
            for line in process.stdout:
                keep(line)
                if on_line:
                    on_line(line.rstrip("\n"))
        return process.wait()
    except BaseException:
        end_group(process)
        raise


def start(
    argv: Sequence[Argument],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdout: int | IO[str] = subprocess.DEVNULL,
    stderr: int | IO[str] = subprocess.DEVNULL,
) -> "subprocess.Popen[str]":
    """Start a program in a process group of its own, with stdin closed.

    The caller sees to its end (``end_group``). Raises ToolError when the program does not exist.
    """
    words = [str(word) for word in argv]
    try:
        return subprocess.Popen(
            words,
            cwd=cwd,
            env=dict(env) if env is not None else clean_env(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise _cannot_start(words, error) from error


def tail_of(log: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last ``lines`` lines of a log file."""
    with log.open(encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, maxlen=lines)]


class _LogFile:
    """Writes to a file, or nowhere when there is no path."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("w", encoding="utf-8") if path else None

    def __enter__(self) -> Callable[[str], object]:
        return self._file.write if self._file else lambda _line: None

    def __exit__(self, *_exc: object) -> None:
        if self._file:
            self._file.close()


def _cannot_start(argv: Sequence[str], error: OSError) -> ToolError:
    if isinstance(error, FileNotFoundError):
        message = f"program not found: {argv[0]}"
    else:
        message = f"cannot start {argv[0]}"
    return ToolError(
        message,
        evidence=[f"command: {shell_quote(argv)}", f"system: {error.strerror or error}"],
        hint=f"install {Path(argv[0]).name} or put it on PATH, then run the same command again",
    )


def end_group(process: "subprocess.Popen[str]") -> None:
    """End a program that ``start`` started and its children: politely, then for certain."""
    _signal_group(process, signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        _signal_group(process, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
        process.wait()


def _signal_group(process: "subprocess.Popen[str]", number: int) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
