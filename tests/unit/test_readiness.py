"""Waiting for a server: patience, progress, and when to stop."""

import os

import psutil
import pytest

from swapmoe import health, readiness
from swapmoe.errors import LaunchError
from swapmoe.health import Endpoint
from swapmoe.readiness import Vitals, Watch


class Clock:
    """A server whose state and vitals the test sets, in time the test passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.is_ready = False
        self.confirmed = False
        self.vitals: Vitals | None = Vitals(0, 0, 0.0)
        monkeypatch.setattr(readiness.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(health, "is_ready", lambda _where: self.is_ready)
        monkeypatch.setattr(readiness, "vitals", lambda _pid: self.vitals)

    def watch(self, timeout: int = 0) -> Watch:
        return Watch(Endpoint("h", 1), lambda: self.confirmed, self.refuse, timeout)

    def refuse(self) -> None:
        raise LaunchError("not confirmed")

    def wait(self, watch: Watch, seconds: float) -> bool:
        self.now += seconds
        return watch(1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_ready_and_confirmed(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    watch = clock.watch()
    assert not clock.wait(watch, 1)
    clock.is_ready = clock.confirmed = True
    assert clock.wait(watch, 1)
    assert watch.ready
    assert "ready after 2 s: http://h:1\n" in capsys.readouterr().err


def test_d11_it_waits_for_hours_and_says_what_goes_on(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = clock.watch()
    for second in range(8 * 3600):
        clock.vitals = Vitals(second * 1000, 5, second / 2)
        assert not clock.wait(watch, 1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "loading for 5 s: 4,000 bytes read, 5 bytes resident, 2 s of CPU time"
    assert lines[1].startswith("loading for 10 s")
    assert 480 <= len(lines) <= 490
    assert not any("nothing has moved" in line for line in lines)


def test_a_server_that_hangs_is_said_to(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    watch = clock.watch()
    for _ in range(400):
        clock.wait(watch, 1)
    assert "; nothing has moved for " in capsys.readouterr().err.splitlines()[-1]


def test_a_timeout_is_only_the_users(clock: Clock) -> None:
    watch = clock.watch(timeout=30)
    clock.wait(watch, 30)
    with pytest.raises(LaunchError, match="not ready after 30 seconds") as caught:
        clock.wait(watch, 1)
    assert "bytes resident" in caught.value.evidence[0]


def test_ready_without_confirming(clock: Clock) -> None:
    watch = clock.watch(timeout=1)
    clock.is_ready = True
    clock.wait(watch, 0)
    assert not clock.wait(watch, readiness.GRACE_SECONDS)
    with pytest.raises(LaunchError, match="not confirmed"):
        clock.wait(watch, 1)


def test_vitals_of_a_process() -> None:
    found = readiness.vitals(os.getpid())
    assert found is not None
    assert found.resident > 0
    assert readiness.vitals(2**22 + 1) is None


def test_vitals_that_are_not_to_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_process: psutil.Process) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "io_counters", refuse, raising=False)
    found = readiness.vitals(os.getpid())
    assert found is not None
    assert found.read is None
