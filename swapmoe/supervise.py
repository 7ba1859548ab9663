"""Starts one long-lived program, hands signals on to it, and gives back how it ended."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

from swapmoe import orphans

GRACE_SECONDS = 10.0
"""How long a program may take to end after a signal: llama-server waits for ever for an answer
that it has itself stopped computing."""
REPEAT_SECONDS = 0.3
"""A signal this soon after the first is the same one: `timeout` and shells send theirs twice."""
POLL_SECONDS = 0.2

Check = Callable[[int], bool]
"""Called now and then with the program's process id until it returns True; may raise to end it."""


def run_child(
    argv: Sequence[str], env: Mapping[str, str], *, terminal: bool, check: Check | None = None
) -> int:
    """Run a program to its end; its exit code, 128 + n when signal n ended it.

    Its output is its own, byte for byte. With `terminal` it shares this terminal and reads it when
    there is one; else it has a session of its own and reads nothing. TERM, HUP and INT are handed
    on to it once, but a Ctrl-C that the shared terminal has sent to both; when it has not ended
    some time after, or another signal comes, it is killed with whatever it has started, and the
    code is the first signal's. An exception, also from `check`, ends it too, and so does the end
    of this process where the system allows. Raises `OSError` when it cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    hands = _Hands(share_terminal=terminal)
    with hands.open():
        child = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=None if terminal and stdin_is_terminal() else subprocess.DEVNULL,
            start_new_session=not terminal,
            preexec_fn=orphans.before_exec(),
        )
        try:
            orphans.tie(child.pid)
            hands.started(child)
            code = _wait(child, check)
        except BaseException:
            _end(child)
            raise
    if hands.killed_after:
        return 128 + hands.killed_after
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
        if check(child.pid):
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


class _Hands:
    """Hands signals on to the child, also those that come before there is one."""

    def __init__(self, *, share_terminal: bool) -> None:
        self.killed_after = 0
        """The signal after which the child did not end in time; 0 = none."""
        self._own_session = not share_terminal and sys.platform != "win32"
        self._sent_ctrl_c = not self._own_session and _in_foreground()
        # A Ctrl-C in a chat only stops the answer.
        self._ending = {"SIGTERM", "SIGHUP"} if share_terminal else {"SIGTERM", "SIGHUP", "SIGINT"}
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._first: tuple[int, float] | None = None
        self._timer: threading.Timer | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Take the signals until the end of the block."""
        names = ("SIGINT", "SIGTERM", "SIGHUP")
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        previous = {number: signal.signal(number, self._take) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            if self._timer:
                self._timer.cancel()

    def started(self, child: "subprocess.Popen[bytes]") -> None:
        """From now on there is someone to hand them to."""
        self._child = child
        for number in self._early:
            self._hand_on(child, number)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self._child:
            self._hand_on(self._child, number)
        else:
            self._early.append(number)

    def _hand_on(self, child: "subprocess.Popen[bytes]", number: int) -> None:
        now = time.monotonic()
        ending = signal.Signals(number).name in self._ending
        if ending and self._first is not None:
            if now - self._first[1] > REPEAT_SECONDS:
                self._kill(child)
            return
        if ending:
            self._first = (number, now)  # before sending: the next one may interrupt right here
        if not (number == signal.SIGINT and self._sent_ctrl_c):
            child.send_signal(number)
        if ending:
            self._timer = threading.Timer(GRACE_SECONDS, self._kill, (child,))
            self._timer.daemon = True
            self._timer.start()

    def _kill(self, child: "subprocess.Popen[bytes]") -> None:
        if child.poll() is not None or self._first is None:
            return
        self.killed_after = self._first[0]
        if self._own_session and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
