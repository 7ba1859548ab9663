"""Waits for a server: as long as it lives, saying what it does, until it is ready and streams."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from swapmoe import console, health
from swapmoe.errors import LaunchError
from swapmoe.health import Endpoint

FIRST_SECONDS = 5.0
"""When the first line about progress is due; the pauses double up to a minute."""
LONGEST_PAUSE_SECONDS = 60.0
STALLED_SECONDS = 120.0
"""After this long without reading, growing or computing a server is said to hang."""
GRACE_SECONDS = 5.0
"""How long after a server is ready its lines may still be on their way."""

Confirm = Callable[[], bool]
"""Whether the engine has confirmed what was asked of it."""
Refuse = Callable[[], None]
"""Raises the error for an engine that has not."""


@dataclass(frozen=True)
class Vitals:
    """What a process has done so far: bytes, and seconds of CPU time. None = not known."""

    read: int | None
    resident: int
    cpu: float


def vitals(pid: int) -> Vitals | None:
    """The vitals of a process; None when it is gone or cannot be seen."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            resident = process.memory_info().rss
            cpu = times.user + times.system
        try:
            counters = process.io_counters() if hasattr(process, "io_counters") else None
        except (psutil.Error, OSError):
            counters = None
        return Vitals(counters.read_bytes if counters else None, resident, cpu)
    except psutil.Error:
        return None


class Watch:
    """Called now and then while a server runs, until it is ready and has confirmed.

    Says the time, what was read and what is resident; raises `LaunchError` when `timeout` seconds
    (0 = no limit) have passed, and what `refuse` raises when the server is ready without having
    confirmed.
    """

    def __init__(self, where: Endpoint, confirm: Confirm, refuse: Refuse, timeout: int = 0) -> None:
        self.ready = False
        """Whether the server has ever said that its model is loaded."""
        self._where = where
        self._confirm = confirm
        self._refuse = refuse
        self._timeout = timeout
        self._started = time.monotonic()
        self._ready_since = 0.0
        self._next_line = FIRST_SECONDS
        self._last: Vitals | None = None
        self._moved = self._started

    def __call__(self, pid: int) -> bool:
        """Whether there is nothing more to wait for."""
        now = time.monotonic()
        elapsed = now - self._started
        if not self.ready and health.is_ready(self._where):
            self.ready = True
            self._ready_since = now
            console.say(f"ready after {elapsed:.0f} s: {self._where.url}")
        if self.ready:
            if self._confirm():
                console.say("experts are streamed as asked")
                return True
            if now - self._ready_since > GRACE_SECONDS:
                self._refuse()
            return False
        if self._timeout and elapsed > self._timeout:
            raise LaunchError(
                f"the server was not ready after {self._timeout} seconds",
                evidence=[self._describe(vitals(pid))],
                hint="give it longer with --start-timeout, or 0 for as long as it takes",
            )
        if elapsed >= self._next_line:
            self._next_line = elapsed + min(elapsed, LONGEST_PAUSE_SECONDS)
            self._say_progress(pid, now, elapsed)
        return False

    def _say_progress(self, pid: int, now: float, elapsed: float) -> None:
        found = vitals(pid)
        if found is None:
            return
        if found != self._last:
            self._last, self._moved = found, now
        stalled = now - self._moved
        hanging = f"; nothing has moved for {stalled:.0f} s" if stalled > STALLED_SECONDS else ""
        console.say(f"loading for {elapsed:.0f} s: {self._describe(found)}{hanging}")

    def _describe(self, found: Vitals | None) -> str:
        if found is None:
            return "nothing is known about its process"
        read = "" if found.read is None else f"{found.read:,} bytes read, "
        return f"{read}{found.resident:,} bytes resident, {found.cpu:.0f} s of CPU time"
