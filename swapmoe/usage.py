"""Runs a program and measures what it used, also between two of its log lines (Linux)."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from swapmoe import run
from swapmoe.run import Argument, Completed


@dataclass(frozen=True)
class Usage:
    """What a program has used since its start; times in seconds, `read` in bytes of storage."""

    wall: float
    user: float
    system: float
    read: int

    @property
    def processor(self) -> float:
        """User and system seconds together."""
        return self.user + self.system

    def since(self, earlier: "Usage") -> "Usage":
        """Return what was used between an earlier moment and this one."""
        return Usage(
            self.wall - earlier.wall,
            self.user - earlier.user,
            self.system - earlier.system,
            self.read - earlier.read,
        )


@dataclass(frozen=True)
class Measured:
    """A program that ended, all it used, and what it had used at each marked line."""

    completed: Completed
    usage: Usage
    major_faults: int
    timed_out: bool
    marks: tuple[tuple[str, Usage], ...]


def measure(
    argv: Sequence[Argument],
    *,
    env: Mapping[str, str],
    timeout: float,
    is_mark: Callable[[str], bool] = lambda line: False,
) -> Measured:
    """Run a program to its end; lines of its stderr for which `is_mark` is true are marks.

    `timeout` is in seconds; the program is killed then. Raises ToolError when it does not exist.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        started = time.monotonic()
        child = run.start(argv, env=env, stdout=out, stderr=subprocess.PIPE)
        assert child.stderr is not None
        late = threading.Event()

        def expire() -> None:
            late.set()
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        timer = threading.Timer(timeout, expire)
        timer.start()
        lines: list[str] = []
        marks: list[tuple[str, Usage]] = []
        try:
            with child.stderr as log:
                for line in log:
                    lines.append(line)
                    if is_mark(line):
                        with suppress(psutil.Error):
                            marks.append((line.rstrip("\n"), _usage_so_far(child.pid, started)))
            _pid, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            run.end_group(child)
            raise
        finally:
            timer.cancel()
        wall = time.monotonic() - started
        out.seek(0)
        words = tuple(str(word) for word in argv)
        completed = Completed(words, child.returncode, out.read(), "".join(lines))
    usage = Usage(wall, used.ru_utime, used.ru_stime, used.ru_inblock * 512)
    return Measured(completed, usage, used.ru_majflt, late.is_set(), tuple(marks))


def _usage_so_far(pid: int, started: float) -> Usage:
    process = psutil.Process(pid)
    times = process.cpu_times()
    read: int = process.io_counters().read_bytes
    return Usage(time.monotonic() - started, times.user, times.system, read)
