"""Starts a program under a limit of memory that counts the page cache: a scope or a cgroup."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shutil import which

from swapmoe import cgroup, sizes
from swapmoe.errors import LaunchError, ToolError
from swapmoe.run import CommandFailed, capture, clean_env

ALIGNMENT = 64 * 1024
"""The kernel counts whole pages; the largest in use have 64 KiB."""
_PROBE_SECONDS = 10.0
_SHOW_LIMIT = """\
v2=$(sed -n 's/^0:://p' /proc/self/cgroup)
v1=$(sed -n 's/^[0-9]*:[^:]*memory[^:]*://p' /proc/self/cgroup)
cat "/sys/fs/cgroup$v2/memory.max" "/sys/fs/cgroup/unified$v2/memory.max" \
    "/sys/fs/cgroup/memory$v1/memory.limit_in_bytes" 2>/dev/null
true
"""


@dataclass(frozen=True)
class Limit:
    """A limit that works here, in bytes. `scope` is the command that sets it; () = a cgroup."""

    size: int
    scope: tuple[str, ...]

    @property
    def how(self) -> str:
        """What sets it, in words."""
        return "a systemd scope" if self.scope else "a cgroup made for it"

    @contextlib.contextmanager
    def applied(self, argv: Sequence[str]) -> Iterator[tuple[list[str], cgroup.MemoryGroup | None]]:
        """The command that starts `argv` under the limit, and its group where it is ours.

        Raises `ToolError` when the group cannot be made any more.
        """
        if self.scope:
            yield [*self.scope, *argv], None
            return
        with cgroup.memory_limit(self.size) as group:
            yield group.wrap(list(argv)), group


def choose(size: int) -> Limit:
    """A way to limit memory to `size` bytes, tried out. Raises `LaunchError` when there is none."""
    size -= size % ALIGNMENT
    refusals = []
    if sys.platform == "linux":
        scope = _scope(size)
        if (reason := _refusal(scope, size)) is None:
            return Limit(size, scope)
        refusals.append(f"systemd-run: {reason}")
        try:
            with cgroup.memory_limit(size):
                return Limit(size, ())
        except ToolError as error:
            refusals += error.evidence
    else:
        refusals.append(
            f"swapmoe can limit the memory of a program on Linux only, not on {sys.platform}"
        )
    raise LaunchError(
        f"memory cannot be limited to {sizes.whole_mib(size):,} MiB here; nothing was started",
        evidence=refusals,
        hint="leave out --memory-limit (run.memory_limit), or " + cgroup.HINT,
    )


def _scope(size: int) -> tuple[str, ...]:
    user = () if hasattr(os, "geteuid") and os.geteuid() == 0 else ("--user",)
    limits = ("-p", f"MemoryMax={size}", "-p", "MemorySwapMax=0")
    return ("systemd-run", *user, "--scope", "--quiet", "--collect", *limits, "--")


def _refusal(scope: Sequence[str], size: int) -> str | None:
    """Why a scope does not limit memory; None when it does.

    A user's service manager takes the property and ignores it where it was not given the memory
    controller, so what the kernel holds is read from within.
    """
    if which(scope[0]) is None:
        return "not installed"
    try:
        done = capture(
            [*scope, "/bin/sh", "-c", _SHOW_LIMIT], env=clean_env(), timeout=_PROBE_SECONDS
        )
    except (CommandFailed, ToolError) as error:
        tail = error.tail if isinstance(error, CommandFailed) else error.evidence
        return next((line for line in reversed(tail) if line.strip()), error.message)
    if str(size) in done.stdout.split():
        return None
    return "the scope has no memory limit: its service manager does not hold that controller"
