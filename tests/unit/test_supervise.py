"""Starting, signalling and outliving: a wrapper process around a child that does as it is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from swapmoe import supervise

CHILD = """\
import os, signal, sys, time
def take(number, frame):
    print(signal.Signals(number).name, flush=True)
    if "deaf" not in sys.argv:
        os._exit(7)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, take)
print("pid", os.getpid(), flush=True)
if "grandchild" in sys.argv:
    pid = os.fork()
    if pid:
        print("pid", pid, flush=True)
while True:
    time.sleep(0.05)
"""
WRAPPER = """\
import os, sys
from swapmoe import supervise
supervise.GRACE_SECONDS, supervise.REPEAT_SECONDS = map(float, sys.argv[1].split(","))
terminal = sys.argv[2] == "run"
sys.exit(supervise.run_child([sys.executable, *sys.argv[3:]], os.environ, terminal=terminal))
"""


class Wrapped:
    """A wrapper that runs, and its child."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.child = psutil.Process(self.read_pid())

    def read_pid(self) -> int:
        word, _, number = self.read().partition(" ")
        assert word == "pid"
        return int(number)

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self.process.send_signal(number)


@contextmanager
def wrapped(
    tmp_path: Path, *argv: str, grace: float = 60.0, repeat: float = 0.0, how: str = "serve"
) -> Iterator[Wrapped]:
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    (tmp_path / "child.py").write_text(CHILD)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [
            *(sys.executable, tmp_path / "wrapper.py", f"{grace},{repeat}", how),
            *(tmp_path / "child.py", *argv),
        ],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout:
        found = Wrapped(process)
        try:
            yield found
        finally:
            process.kill()
            process.wait()
            with suppress(psutil.NoSuchProcess):
                found.child.kill()


def gone(process: psutil.Process, seconds: float = 10.0) -> bool:
    """Whether a process ends in time; one that only waits to be reaped has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("how", ["serve", "run"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_d04_a_signal_is_handed_on_and_the_code_comes_back(
    tmp_path: Path, number: signal.Signals, how: str
) -> None:
    with wrapped(tmp_path, how=how) as found:
        found.send(number)
        assert found.read() == number.name
        assert found.process.wait(20) == 7
        assert gone(found.child)


@pytest.mark.parametrize("how", ["serve", "run"])
def test_d04_no_orphan_when_the_wrapper_is_killed(tmp_path: Path, how: str) -> None:
    with wrapped(tmp_path, "deaf", how=how) as found:
        found.send(signal.SIGKILL)
        assert found.process.wait(20) == -signal.SIGKILL
        assert gone(found.child)


def test_the_same_signal_twice_at_once_counts_once(tmp_path: Path) -> None:
    """As `timeout` and a closing terminal send it."""
    with wrapped(tmp_path, "deaf", grace=1.0, repeat=60.0) as found:
        started = time.monotonic()
        found.send(signal.SIGTERM)
        assert found.read() == "SIGTERM"
        found.send(signal.SIGTERM, signal.SIGHUP)
        assert found.process.wait(20) == 128 + signal.SIGTERM
        assert time.monotonic() - started > 0.9
        assert found.read() == ""
        assert gone(found.child)


def test_d04_a_second_signal_means_now(tmp_path: Path) -> None:
    with wrapped(tmp_path, "deaf") as found:
        found.send(signal.SIGINT)
        assert found.read() == "SIGINT"
        found.send(signal.SIGINT)
        assert found.process.wait(20) == 128 + signal.SIGINT
        assert found.read() == ""


def test_what_a_server_started_goes_with_it(tmp_path: Path) -> None:
    with wrapped(tmp_path, "deaf", "grandchild", grace=0.3) as found:
        grandchild = psutil.Process(found.read_pid())
        found.send(signal.SIGTERM)
        assert found.process.wait(20) == 128 + signal.SIGTERM
        assert gone(grandchild)


def test_a_server_has_a_group_of_its_own(tmp_path: Path) -> None:
    with wrapped(tmp_path) as found:
        assert os.getpgid(found.child.pid) == found.child.pid
    with wrapped(tmp_path, how="run") as found:
        assert os.getpgid(found.child.pid) == found.process.pid


def test_a_check_that_raises_ends_the_child(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    seen: list[int] = []

    def check(pid: int) -> bool:
        seen.append(pid)
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        supervise.run_child([sys.executable, str(script)], os.environ, terminal=False, check=check)
    assert not psutil.pid_exists(seen[0])
