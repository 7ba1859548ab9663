"""Starts one long-lived program, hands signals on to it, and gives back how it ended."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

GRACE_SECONDS = 10.0
POLL_SECONDS = 0.2

Check = Callable[[], bool]
"""Called now and then while the program runs, until it returns True; may raise to end it."""


def run_child(
    argv: Sequence[str], env: Mapping[str, str], *, terminal: bool, check: Check | None = None
) -> int:
    """Run a program to its end; its exit code, 128 + n when signal n ended it.

    Its output is its own, byte for byte. With `terminal` it shares this terminal and reads it when
    there is one; else it has a session of its own and reads nothing. TERM, HUP and INT are handed
    on to it, but a Ctrl-C that the shared terminal has sent to both. An exception, also from
    `check`, ends it first. Raises `OSError` when it cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with _handing_on_signals(skip_ctrl_c=terminal and _in_foreground()) as started:
        child = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=None if terminal and stdin_is_terminal() else subprocess.DEVNULL,
            start_new_session=not terminal,
        )
        started(child)
        try:
            code = _wait(child, check)
        except BaseException:
            _end(child)
            raise
    return 128 - code if code < 0 else code


def stdin_is_terminal() -> bool:
    """Whether someone can type to this process."""
    try:
        return sys.stdin.isatty()
    except (AttributeError, ValueError):  # no stdin at all, or a closed one
        return False


def _wait(child: "subprocess.Popen[bytes]", check: Check | None) -> int:
    while check is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(POLL_SECONDS)
        if check():
            check = None
    return child.wait()


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _in_foreground() -> bool:
    """Whether a Ctrl-C on the terminal reaches this process, and so its children too."""
    if sys.platform == "win32":
        return True
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


@contextlib.contextmanager
def _handing_on_signals(
    *, skip_ctrl_c: bool
) -> Iterator[Callable[["subprocess.Popen[bytes]"], None]]:
    """Hand signals on to the child, also those that come before there is one."""
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def hand_on(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and skip_ctrl_c:
            return
        if not children:
            early.append(number)
        for child in children:
            child.send_signal(number)

    def started(child: "subprocess.Popen[bytes]") -> None:
        children.append(child)
        for number in early:
            child.send_signal(number)

    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    previous = {number: signal.signal(number, hand_on) for number in numbers}
    try:
        yield started
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
