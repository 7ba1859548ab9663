"""`swapmoe serve` as a user types it, with the real server behind it."""

import contextlib
import http.client
import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

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


@pytest.mark.parametrize(("signals", "code"), [(1, 143), (2, 1)])
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


def test_a_second_server_on_the_port_fails_and_harms_nobody(tmp_path: Path) -> None:
    model = make_tiny(tmp_path)
    with serving(model, tmp_path / "log") as server:
        argv = ("--host", "127.0.0.1", "--port", str(server.port))
        with (
            pytest.raises(AssertionError, match="the server ended"),
            serving(model, tmp_path / "second", *argv),
        ):
            pass
        assert psutil.pid_exists(server.child.pid)
        assert server.complete("Hello", 4)["tokens_predicted"] == 4
