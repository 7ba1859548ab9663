"""Starting programs: argv lists, clean environment, tails, logs, and no orphans."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from swapmoe import run
from swapmoe.errors import ToolError


def script(folder: Path, body: str, name: str = "program") -> list[str]:
    file = folder / name
    file.write_text(body)
    return [sys.executable, str(file)]


def test_capture_returns_both_streams_and_odd_arguments_verbatim(tmp_path: Path) -> None:
    argv = script(tmp_path, "import sys\nprint(sys.argv[1:])\nprint('e', file=sys.stderr)")
    odd = ["a b", "$HOME", ";rm", '"', "naïve 模型", "-x", ""]
    done = run.capture([*argv, *odd])
    assert done.stdout == f"{odd}\n"
    assert (done.stderr, done.returncode) == ("e\n", 0)


def test_failure_carries_code_command_and_the_last_lines(tmp_path: Path) -> None:
    argv = script(tmp_path, "for i in range(99): print(i)\nraise SystemExit(7)")
    with pytest.raises(run.CommandFailed) as caught:
        run.capture(argv)
    assert caught.value.returncode == 7
    assert caught.value.tail == tuple(str(i) for i in range(99 - run.TAIL_LINES, 99))
    assert run.shell_quote(argv) in caught.value.evidence[0]
    assert run.capture(argv, check=False).returncode == 7


def test_death_by_signal_is_named(tmp_path: Path) -> None:
    argv = script(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(run.CommandFailed, match="SIGILL"):
        run.capture(argv)


def test_timeout_is_in_seconds(tmp_path: Path) -> None:
    argv = script(tmp_path, "import time\ntime.sleep(60)")
    with pytest.raises(run.CommandFailed) as caught:
        run.capture(argv, timeout=0.2)
    assert caught.value.tail == ("no end after 0.2 seconds",)


@pytest.mark.parametrize("start", [run.capture, run.stream])
def test_missing_program_is_named(start: object) -> None:
    with pytest.raises(ToolError, match="no-such-program") as caught:
        start(["no-such-program", "x"])  # type: ignore[operator]
    assert caught.value.exit_code == 4


def test_environment_is_clean_and_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/x")
    monkeypatch.setenv("LLAMA_ARG_CTX", "1")
    env = run.clean_env({"NEW": "1"})
    assert "GIT_DIR" not in env
    assert (env["NEW"], env["LLAMA_ARG_CTX"]) == ("1", "1")
    assert "LLAMA_ARG_CTX" not in run.clean_env(drop_prefixes=("LLAMA_",))


def test_stream_merges_logs_and_hands_on_lines(tmp_path: Path) -> None:
    body = "import sys\nprint('a', flush=True)\nprint('b', file=sys.stderr)\nraise SystemExit(3)"
    seen: list[str] = []
    log = tmp_path / "log"
    code = run.stream(script(tmp_path, body), log=log, on_line=seen.append)
    assert (code, seen, log.read_text()) == (3, ["a", "b"], "a\nb\n")
    assert run.tail_of(log, 1) == ["b"]


def test_undecodable_output_does_not_break_the_stream(tmp_path: Path) -> None:
    body = "import sys\nsys.stdout.buffer.write(b'\\xff\\n')"
    seen: list[str] = []
    assert run.stream(script(tmp_path, body), on_line=seen.append) == 0
    assert seen == ["\N{REPLACEMENT CHARACTER}"]


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_an_interrupt_ends_the_program_and_its_children(tmp_path: Path) -> None:
    child = script(tmp_path, "import time\nprint('child', flush=True)\ntime.sleep(60)", "child")
    parent = script(
        tmp_path,
        f"import os, subprocess\nchild = subprocess.Popen({child!r})\n"
        "print(os.getpid(), child.pid, flush=True)\nchild.wait()",
    )
    pids: list[int] = []

    def on_line(line: str) -> None:
        if line == "child":
            raise KeyboardInterrupt
        pids.extend(int(word) for word in line.split())

    with pytest.raises(KeyboardInterrupt):
        run.stream(parent, on_line=on_line)
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_program_that_ignores_term_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_GRACE_SECONDS", 0.2)
    body = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )

    def on_line(_line: str) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run.stream(script(tmp_path, body), on_line=on_line)
    assert time.monotonic() - started < 20


def test_quoting_is_for_the_shell_of_this_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.sys, "platform", "linux")
    assert run.shell_quote(["a b", "c'd"], {"X": "1 2"}) == "X='1 2' 'a b' 'c'\"'\"'d'"
    monkeypatch.setattr(run.sys, "platform", "win32")
    assert run.shell_quote(["a b", "c"], {"X": "1"}) == 'set "X=1" && "a b" c'


def test_the_guard_of_unit_tests_refuses_real_programs() -> None:
    with pytest.raises(AssertionError, match="must not start git"):
        run.capture(["git", "--version"])
    with pytest.raises(AssertionError, match="must not start"):
        os.execv("/bin/true", ["true"])


def test_sigterm_ends_the_command_line_with_143(monkeypatch: pytest.MonkeyPatch) -> None:
    from swapmoe import cli

    def hang(*_args: object, **_options: object) -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        time.sleep(30)

    monkeypatch.setattr(cli.cli, "main", hang)
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 143
