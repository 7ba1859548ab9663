"""`swapmoe serve` against a fake llama-server."""

import json
import shlex
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from swapmoe import gguf_info, health, limits, memory, plan, readiness, sizes
from swapmoe.cli import main
from swapmoe.errors import LaunchError
from swapmoe.health import Endpoint
from swapmoe.memory import Memory
from swapmoe.ports import check_free
from swapmoe.receipts import Receipt
from tests.support.building import Workshop
from tests.support.fake_server import serving

SERVER = "llama-server"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def test_a03_a04_the_dry_run_states_the_presets(
    shop: Workshop,
    built: Receipt,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(memory, "usable", lambda: Memory(4 << 30, 8 << 30, "free"))
    assert main(["serve", "-m", str(model), "--port", "9", "--prefetch", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    words = shlex.split(out)
    assert words[0] == str(built.program(SERVER))
    text = " ".join(words[3:])
    assert text.startswith("--host 127.0.0.1 --port 9 --expert-streaming")
    cache = plan.make(gguf_info.inspect(model), here=memory.usable()).prompt_cache // sizes.MIB
    for preset in ("--parallel 1", f"--cache-ram {cache}", "--ctx-checkpoints 2", "--fit off"):
        assert preset in text
        assert f"{preset}: " in err
    assert "plan: fits: all experts stay in memory once they are read" in err
    assert "--metrics" in text
    assert "--no-warmup" in text
    assert all(call == ["--help"] for call in shop.tools.calls(SERVER))


def test_settings_and_flags(
    built: Receipt, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("swapmoe.toml").write_text(
        "[serve]\nhost = '0.0.0.0'\nport = 81\n[run]\nprefetch = true\n"
    )
    monkeypatch.setenv("SWAPMOE_SERVE_PORT", "82")
    monkeypatch.setenv("SWAPMOE_RUN_KEEP_RECENT", "3")
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "4")
    argv = ["serve", "-m", str(model), "--no-prefetch", "--dry-run", "--json"]
    assert main([*argv, "--", "--cache-ram", "-1", "--alias", "x"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    text = " ".join(data["argv"])
    assert "--host 0.0.0.0 --port 82" in text
    assert "--expert-keep-recent 3" in text
    assert "--expert-prefetch" not in text
    assert text.count("--cache-ram") == 1
    assert text.endswith("--cache-ram -1 --alias x")
    assert data["env_removed"] == ["LLAMA_ARG_N_PARALLEL"]
    slots = next(option for option in data["options"] if option["option"] == "--parallel")
    assert slots["values"] == ["1"]
    assert "no limit (--cache-ram -1)" in err


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ([], 2),
        (["-m", ""], 2),
        (["-m", "."], 2),
        (["-m", "presets.ini"], 9),
        (["-m", "none.gguf"], 9),
        (["-m", "MODEL", "--port", "65536"], 2),
        (["-m", "MODEL", "--host", ""], 3),
        (["-m", "MODEL", "--json"], 2),
        (["-m", "MODEL", "--keep-recent", "1"], 9),
        (["-m", "MODEL", "--fixation", "4", "--", "-np", "2"], 2),
        (["-m", "MODEL", "--", "--models-dir", "."], 2),
        (["-m", "MODEL", "--", "--port", "81"], 2),
        (["-m", "MODEL", "-p", "hi"], 2),
    ],
)
def test_d12_refused_before_anything_starts(
    shop: Workshop, built: Receipt, model: Path, argv: list[str], code: int
) -> None:
    Path("presets.ini").write_text("[a]\nmodel = x\n" * 10)
    assert main(["serve", *(str(model) if word == "MODEL" else word for word in argv)]) == code
    assert all(call == ["--help"] for call in shop.tools.calls(SERVER))


def test_it_mirrors_the_servers_end(
    shop: Workshop, built: Receipt, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shop.tools.set(exit=3, complains="no port")
    assert main(["serve", "-m", str(model)]) == 3
    out, err = capfd.readouterr()
    assert out == "hello\n"
    assert "no porterror: llama-server ended with exit code 3 before it was ready" in err
    assert "its log: expert_stream: tracking 24" in err
    assert shop.tools.seen()["stdin"] == ""


def test_a_server_that_is_ready_without_confirming_is_ended(
    shop: Workshop,
    built: Receipt,
    model: Path,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(readiness, "GRACE_SECONDS", 0.3)
    shop.tools.set(forever=True, health=200, unsaid=["prefetch"])
    assert main(["serve", "-m", str(model), "--port", str(port), "--prefetch"]) == 10
    assert "no line for --prefetch" in capfd.readouterr().err
    assert not health.is_ready(Endpoint("127.0.0.1", port))


def test_d11_a_loading_server_is_waited_for(
    shop: Workshop, built: Receipt, model: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "GRACE_SECONDS", 0.0)
    shop.tools.set(forever=True, health=503, unsaid=["prefetch"])
    with serving(shop, model, port, "--prefetch") as wrapper:
        time.sleep(1.5)
        assert wrapper.poll() is None
        wrapper.terminate()
        assert wrapper.wait(20) == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_server_and_it_is_reaped(
    shop: Workshop, built: Receipt, model: Path, port: int, number: signal.Signals
) -> None:
    shop.tools.set(forever=True)
    with serving(shop, model, port) as wrapper:
        (child,) = psutil.Process(wrapper.pid).children()
        wrapper.send_signal(number)
        assert wrapper.wait(20) in (128 + number, 1)  # Python, which the fake is, ends INT with 1
        assert not child.is_running()


def test_a_server_that_does_not_end_is_killed(
    shop: Workshop, built: Receipt, model: Path, port: int
) -> None:
    shop.tools.set(forever=True, deaf=True)
    with serving(shop, model, port) as wrapper:
        (child,) = psutil.Process(wrapper.pid).children()
        wrapper.terminate()
        assert wrapper.wait(20) == 128 + signal.SIGTERM
        assert not child.is_running()


def test_a_server_killed_from_outside(
    shop: Workshop, built: Receipt, model: Path, port: int
) -> None:
    shop.tools.set(forever=True)
    with serving(shop, model, port) as wrapper:
        psutil.Process(wrapper.pid).children()[0].kill()
        assert wrapper.wait(20) == 137


CYCLES = {
    "idle": {"health": 200},
    "loading": {"health": 503},
    "unwell": {"health": 500},
    "silent": {},
    "deaf": {"health": 200, "deaf": True},
    "talkative": {"health": 200, "chatter": True},
    "dying": {"forever": False, "exit": 3},
}
"""Servers of all kinds -> their knobs."""


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(29, marks=[pytest.mark.full, pytest.mark.timeout(1800)])]
)
def test_d04_start_and_stop_leave_nothing_behind(
    shop: Workshop, built: Receipt, model: Path, port: int, rounds: int
) -> None:
    """Seven kinds of servers: 203 cycles in the full tests."""
    for number in range(rounds):
        for kind, knobs in CYCLES.items():
            shop.tools.set(health=0, deaf=False, chatter=False, forever=True)
            shop.tools.set(**knobs)
            with serving(shop, model, port) as wrapper:
                if kind == "dying":
                    assert wrapper.wait(20) == 3
                else:
                    wrapper.terminate()
                    assert wrapper.wait(20) == 128 + signal.SIGTERM, (number, kind)
    check_free(Endpoint("127.0.0.1", port))
    assert not list((shop.root / "tmp").iterdir())
    assert not [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(shop.root) in word for word in process.info["cmdline"] or ())
    ]


def test_a_port_in_use_is_refused_before_the_start(
    shop: Workshop, built: Receipt, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        argv = ["serve", "-m", str(model), "--port", str(taken.getsockname()[1])]
        assert main(argv) == 10
        assert main([*argv, "--", "--reuse-port"]) == 0  # the fake ends at once
    assert "in use" in capsys.readouterr().err
    assert [call != ["--help"] for call in shop.tools.calls(SERVER)].count(True) == 1


def test_a_port_is_chosen(
    shop: Workshop, built: Receipt, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "-m", str(model), "--port", "0", "--dry-run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    chosen = data["argv"][data["argv"].index("--port") + 1]
    assert int(chosen) > 0
    assert data["url"] == f"http://127.0.0.1:{chosen}"


def test_a_start_timeout_ends_the_server(
    shop: Workshop, built: Receipt, model: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.tools.set(forever=True, health=503)
    argv = ["serve", "-m", str(model), "--port", str(port), "--start-timeout", "1"]
    assert main(argv) == 10
    assert "not ready after 1 seconds" in capsys.readouterr().err
    check_free(Endpoint("127.0.0.1", port))


def test_the_memory_limit_is_stated_or_refused_before_the_start(
    shop: Workshop,
    built: Receipt,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(limits, "choose", lambda size: limits.Limit(size, ("scope", "--")))
    argv = ["serve", "-m", str(model), "--memory-limit", "2G"]
    assert main([*argv, "--dry-run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["memory_limit"] == {"bytes": 2 << 30, "by": "a systemd scope"}
    assert data["command"].startswith("scope -- ")

    def refuse(_size: int) -> limits.Limit:
        raise LaunchError("memory cannot be limited here")

    monkeypatch.setattr(limits, "choose", refuse)
    assert main(argv) == 10
    assert all(call == ["--help"] for call in shop.tools.calls(SERVER))


def test_health_of_what_is_not_there(tmp_path: Path, port: int) -> None:
    assert not health.is_ready(Endpoint("127.0.0.1", port))
    assert not health.is_ready(Endpoint(str(tmp_path / "x.sock"), 0))
    assert not health.is_ready(Endpoint("no-such-host.invalid", port))
