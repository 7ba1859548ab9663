"""`swapmoe serve` as a user types it, with the real server behind it."""

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from swapmoe import history, limits, recorder
from swapmoe.errors import LaunchError
from swapmoe.gguf_info import inspect
from swapmoe.supervise import GRACE_SECONDS
from tests.support.models import make_tiny
from tests.support.server import serving

pytestmark = pytest.mark.usefixtures("installed")

QUICKLY = 10.0


def test_it_serves_and_shows_what_is_active(tmp_path: Path) -> None:
    options = ("--cache-size", "1", "--keep-recent", "3", "--fixation", "4", "--prefetch")
    with serving(make_tiny(tmp_path), tmp_path / "log", *options, "--io", "mmap") as server:
        before = server.metrics()
        assert server.complete("Hello there", 8)["tokens_predicted"] == 8
        props = json.loads(server.ask("/props"))
        assert props["total_slots"] == 1
        active = props["expert_streaming"]
        assert active["io"] == "mmap"
        assert active["keep_recent"] == 3
        assert active["fixation"] == 4
        assert active["prefetch"] is True
        after = server.metrics()
        assert after["expert_slices_routed_total"] > before["expert_slices_routed_total"]
        time.sleep(1)  # the lines are looked for a few times a second
        code, seconds = server.stop()
        assert code == 0
        assert seconds < QUICKLY
    log = (tmp_path / "log").read_text()
    assert "experts are streamed as asked" in log
    assert "error" not in log


def test_a_server_that_rests_is_measured_for_the_next_plan(tmp_path: Path) -> None:
    model = make_tiny(tmp_path)
    with serving(model, tmp_path / "log", "--io", "direct") as server:
        deadline = time.monotonic() + 60
        while not history.runs(inspect(model)) and time.monotonic() < deadline:
            server.complete("Hello there", 400)
            time.sleep(2.5 * recorder.PAUSE_SECONDS)
        assert server.stop()[0] == 0
    (run,) = history.runs(inspect(model))
    assert (run.io, run.served) == ("direct", 1)
    assert run.decode_rate > 0
    assert run.hit_rate
    assert "measured for the next plan" in (tmp_path / "log").read_text()


def test_it_answers_as_without_the_options(tmp_path: Path) -> None:
    model = make_tiny(tmp_path, "tiny-qwen3moe")
    texts = []
    for options in ((), ("--prefetch", "--cache-size", "1", "--keep-recent", "2")):
        with serving(model, tmp_path / "log", *options) as server:
            texts.append(server.complete("The quick brown fox", 24)["content"])
            assert server.stop()[0] == 0
    assert texts[0] == texts[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_idle_server(tmp_path: Path, number: signal.Signals) -> None:
    with serving(make_tiny(tmp_path), tmp_path / "log") as server:
        child = server.child
        code, seconds = server.stop(number)
        assert code == 0
        assert seconds < QUICKLY
        assert not child.is_running()


@pytest.mark.parametrize(("signals", "code"), [(1, 143), (2, 143)])
def test_a_signal_in_the_middle_of_a_request(tmp_path: Path, signals: int, code: int) -> None:
    """llama-server alone would never end after one signal: the launcher ends it."""
    with serving(make_tiny(tmp_path), tmp_path / "log") as server:
        child = server.child
        client = threading.Thread(target=lambda: _ignore(server.complete, "Hello", 2000))
        client.start()
        time.sleep(0.5)
        for _ in range(signals - 1):
            server.wrapper.terminate()
            time.sleep(0.5)
        found, seconds = server.stop()
        client.join(30)
        assert not client.is_alive()
        assert found == code
        assert seconds < (GRACE_SECONDS if signals == 1 else 0) + QUICKLY
        assert not child.is_running()


def _ignore(ask: Callable[..., object], *args: object) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask(*args)


def test_a_second_server_on_the_port_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    model = make_tiny(tmp_path)
    with serving(model, tmp_path / "log") as server:
        argv = ("--host", "127.0.0.1", "--port", str(server.port))
        with (
            pytest.raises(AssertionError, match=r"in use\n  by process \d+ \(llama-server\)"),
            serving(model, tmp_path / "second", *argv),
        ):
            pass
        assert psutil.pid_exists(server.child.pid)
        assert server.complete("Hello", 4)["tokens_predicted"] == 4


def test_no_server_outlives_a_wrapper_that_is_killed(tmp_path: Path) -> None:
    with serving(make_tiny(tmp_path), tmp_path / "log") as server:
        child = server.child
        server.wrapper.kill()
        server.wrapper.wait()
        psutil.wait_procs([child], timeout=QUICKLY)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_chosen_port_and_a_memory_limit(tmp_path: Path) -> None:
    """The last --port counts, so the client has to find the one that was chosen."""
    log = tmp_path / "log"
    try:
        limits.choose(256 << 20)
        limit: tuple[str, ...] = ("--memory-limit", "256M")
    except LaunchError:
        limit = ()
    command = [sys.executable, "-m", "swapmoe", "serve", "-m", str(make_tiny(tmp_path))]
    with log.open("wb") as output:
        wrapper = subprocess.Popen(
            [*command, "--port", "0", *limit], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 60
        while not (
            found := re.search(r"ready after \d+ s: (http://127\.0\.0\.1:\d+)\n", log.read_text())
        ):
            assert wrapper.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        with urllib.request.urlopen(f"{found[1]}/health", timeout=10) as answer:
            assert answer.status == 200
        if limit:
            (child,) = psutil.Process(wrapper.pid).children()
            assert "swapmoe-" in Path(f"/proc/{child.pid}/cgroup").read_text() or _in_scope(child)
        wrapper.terminate()
        assert wrapper.wait(30) == 0
    finally:
        wrapper.kill()
        wrapper.wait()


def _in_scope(child: psutil.Process) -> bool:
    return ".scope" in Path(f"/proc/{child.pid}/cgroup").read_text()


def test_a_limit_that_cannot_work_is_refused_before_the_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "swapmoe", "run", "-m", str(make_tiny(tmp_path)), "-p", "hi"]
    done = subprocess.run(
        [*command, "--memory-limit", "16M"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 9
    assert "16 MiB are usable (the memory limit given)" in done.stderr
    assert done.stdout == ""
