"""`swapmoe run` against a fake llama-cli: what is checked first, started, and handed on."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swapmoe import filesystems, limits, receipts
from swapmoe.build import BuildOptions, ensure_built
from swapmoe.cgroup import MemoryGroup
from swapmoe.cli import main
from swapmoe.filesystems import Place
from swapmoe.limits import Limit
from swapmoe.receipts import Receipt
from tests.support.building import Workshop, make_pin
from tests.support.headers import write, write_shards
from tests.support.models import make_tiny


def test_d02_one_answer_then_the_end_with_the_programs_code(
    shop: Workshop, built: Receipt, model: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    shop.tools.set(says="text\r\n\x1b[0m\x00ü", complains="line [1]\rline 2", exit=3)
    assert main(["run", "-m", str(model), "-p", "hi", "-n", "4", "--", "--temp", "0"]) == 3
    out, err = capfdbinary.readouterr()
    assert out == "text\r\n\x1b[0m\x00ü".encode()
    assert err == b"line [1]\rline 2"
    call = shop.tools.calls("llama-cli")[-1]
    assert call[:4] == ["--model", str(model), "--prompt", "hi"]
    assert call[-2:] == ["--temp", "0"]
    assert "--single-turn" in call
    assert shop.tools.seen()["stdin"] == ""


def test_never_from_path(shop: Workshop, model: Path) -> None:
    fake = shop.tools.folder / "llama-cli"
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    assert main(["run", "-m", str(model), "-p", "hi"]) == 10


def test_dry_run_prints_a_command_to_paste(
    shop: Workshop,
    built: Receipt,
    model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLAMA_ARG_MLOCK", "1")
    prompt = 'a "b" $c; d\nü'
    assert main(["run", "-m", str(model), "-p", prompt, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    words = shlex.split(out)
    assert words[:4] == ["env", "-u", "LLAMA_ARG_MLOCK", str(built.program("llama-cli"))]
    assert words[4:8] == ["--model", str(model), "--prompt", prompt]
    assert "24 routed slices" in err
    assert all(call == ["--help"] for call in shop.tools.calls("llama-cli"))
    script = shop.root / "paste"
    script.write_text(f"#!/bin/sh\n{out}", encoding="utf-8")
    script.chmod(0o755)
    assert subprocess.run([script], capture_output=True, check=True).stdout == b"hello\n"
    assert "LLAMA_ARG_MLOCK" not in shop.tools.seen()["env"]


def test_a13_a_slow_place_is_warned_about_before_the_start(
    built: Receipt,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = Place("/mnt/c", "9p", "C:", ("rw", "aname=drvfs"), "", "unknown")
    monkeypatch.setattr(filesystems, "place_of", lambda _path: place)
    assert main(["run", "-m", str(model), "-p", "hi", "--dry-run", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("note: 9p goes through the host for every read")
    (found,) = json.loads(out)["places"]
    assert (found["filesystem"], found["medium"]) == ("9p", "unknown")
    assert found["warnings"]


def test_dry_run_json(built: Receipt, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-m", str(model), "-p", "hi", "--dry-run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["argv"][0] == str(built.program("llama-cli"))
    assert data["model"]["routed_slices"] == 24
    assert data["version"] == "version: 10235 (221f0f635)"


def test_contradicting_variables_are_removed_and_said_once(
    shop: Workshop,
    built: Receipt,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LLAMA_ARG_NO_MMAP", "1")
    monkeypatch.setenv("LLAMA_ARG_TOP_K", "1")
    assert main(["run", "-m", str(model), "-p", "hi"]) == 0
    assert capfd.readouterr().err.count("LLAMA_ARG_NO_MMAP") == 1
    env = shop.tools.seen()["env"]
    del env["LLAMA_ARG_EXPERT_LOG"]
    assert env == {"LLAMA_ARG_TOP_K": "1"}


def test_compute_threads_leave_the_readers_a_core(
    shop: Workshop,
    built: Receipt,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In direct mode only, and not against what the user has chosen."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)

    def command(*options: str) -> list[str]:
        assert main(["run", "-m", str(model), "-p", "hi", "--dry-run", *options]) == 0
        return shlex.split(capsys.readouterr().out)

    assert command("--io", "direct")[:2] == ["env", "GOMP_SPINCOUNT=1000"]
    for options in ((), ("--io", "mmap"), ("--io", "fault")):
        assert command(*options)[0] == str(built.program("llama-cli"))
    assert main(["run", "-m", str(model), "-p", "hi", "--io", "direct"]) == 0
    assert shop.tools.seen()["openmp"] == {"GOMP_SPINCOUNT": "1000"}
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert command("--io", "direct")[0] == str(built.program("llama-cli"))
    assert main(["run", "-m", str(model), "-p", "hi", "--io", "direct"]) == 0
    assert shop.tools.seen()["openmp"] == {"OMP_WAIT_POLICY": "active"}


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGSEGV"])
def test_a_signal_becomes_an_exit_code(
    shop: Workshop, built: Receipt, model: Path, how: str
) -> None:
    shop.tools.set(exit=how)
    expected = 128 + getattr(signal, how)
    assert main(["run", "-m", str(model), "-p", "hi"]) == expected


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("SIGKILL", "ended with SIGKILL"),
        ("SIGSEGV", "ended with SIGSEGV"),
        ("SIGBUS", "is the file whole"),
        ("SIGTERM", ""),
    ],
)
def test_a_crash_is_explained(
    shop: Workshop,
    built: Receipt,
    model: Path,
    capfd: pytest.CaptureFixture[str],
    how: str,
    said: str,
) -> None:
    shop.tools.set(exit=how)
    main(["run", "-m", str(model), "-p", "hi"])
    err = capfd.readouterr().err
    assert said in err
    assert ("its log: expert_stream: tracking" in err) == bool(said)


def test_an_end_for_want_of_memory_is_explained(
    shop: Workshop,
    built: Receipt,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    group = MemoryGroup(shop.root, 2)
    (shop.root / "memory.events").write_text("oom 1\noom_kill 1\n")

    @contextlib.contextmanager
    def applied(_limit: Limit, argv: list[str]) -> Iterator[tuple[list[str], MemoryGroup]]:
        yield list(argv), group

    monkeypatch.setattr(Limit, "applied", applied)
    monkeypatch.setattr(limits, "choose", lambda size: Limit(size, ()))
    shop.tools.set(exit="SIGKILL")
    assert main(["run", "-m", str(model), "-p", "hi", "--memory-limit", "1G"]) == 137
    err = capfd.readouterr().err
    assert "needed more memory than its limit of 1,073,741,824 bytes" in err


def test_illegal_instruction_is_explained(
    shop: Workshop, built: Receipt, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shop.tools.set(exit="SIGILL")
    shop.cpu("sse2")
    assert main(["run", "-m", str(model), "-p", "hi"]) == 132
    err = capfd.readouterr().err
    assert "made for a CPU with avx2, which this one lacks" in err
    assert "SIGILL" in err
    assert "swapmoe build --portable" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_reaches_the_child(
    shop: Workshop, built: Receipt, model: Path, number: signal.Signals
) -> None:
    shop.tools.set(forever=True)
    script = (
        "import sys; from swapmoe import launch, start; from pathlib import Path;"
        "from swapmoe.config import RunSettings; from tests.support.building import make_pin;"
        f"pin = make_pin(Path('.'), {shop.tree_id!r});"
        f"plan = launch.prepare(launch.Request(Path({str(model)!r}), 'hi', RunSettings()), pin);"
        "sys.exit(start.execute(plan))"
    )
    own = shop.root / "wrapper.py"
    own.write_text(script)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    wrapper = subprocess.Popen([sys.executable, own], env=env, stdout=subprocess.PIPE)
    assert wrapper.stdout is not None
    with wrapper.stdout:
        assert wrapper.stdout.readline() == b"hello\n"
        wrapper.send_signal(number)
        assert wrapper.wait(20) == 128 + number
        assert wrapper.stdout.read() == b""  # the child is gone too: nobody holds the pipe


class TestRefusedBeforeTheStart:
    def check(self, shop: Workshop, argv: list[str], code: int) -> None:
        assert main(["run", *argv]) == code
        assert [call for call in shop.tools.calls("llama-cli") if call != ["--help"]] == []

    def test_models(self, shop: Workshop, built: Receipt, model: Path) -> None:
        cut = write(shop.root / "cut.gguf", model.read_bytes()[:-1024])
        html = write(shop.root / "page.gguf", b"<!DOCTYPE html>")
        dense = make_tiny(shop.root, "tiny-dense")
        for path in (cut, html, dense, shop.root, shop.root / "none.gguf"):
            self.check(shop, ["-m", str(path), "-p", "hi"], 9)

    @pytest.mark.parametrize(
        "prompt", ["", "\n", "\\n", "/exit", "/clear now", "/read x", "/regen", "a\0b"]
    )
    def test_prompts_that_would_never_end(
        self, shop: Workshop, built: Receipt, model: Path, prompt: str
    ) -> None:
        self.check(shop, ["-m", str(model), "-p", prompt], 2)

    def test_command_lines(self, shop: Workshop, built: Receipt, model: Path) -> None:
        path = str(model)
        for argv in (
            ["-p", "hi"],
            ["-m", "", "-p", "hi"],
            ["-m", path],
            ["-m", path, "-p", "hi", "--chat"],
            ["-m", path, "--chat"],
            ["-m", path, "-p", "hi", "--json"],
            ["-m", path, "-p", "hi", "--io", "fast"],
            ["-m", path, "-p", "hi", "-n", "-5"],
            ["-m", path, "-p", "hi", "--", "--no-mmap"],
            ["-m", path, "-p", "hi", "--", "--load-mode=none"],
            ["-m", path, "-p", "hi", "--", "--expert-fixation", "4"],
            ["-m", path, "-p", "hi", "--cache-size", "1.5"],
            ["-m", path, "-p", "hi", "--cache-size", "-1"],
            ["-m", path, "-p", "hi", "--keep-recent", "-1"],
            ["-m", path, "-p", "hi", "--fixation", "1"],
            ["-m", path, "-p", "hi", "--fixation", "4", "--", "-md", "draft.gguf"],
        ):
            self.check(shop, argv, 2)

    def test_builds(self, shop: Workshop, built: Receipt, model: Path) -> None:
        argv = ["-m", str(model), "-p", "hi"]
        library = built.program("llama-server")
        library.write_bytes(b"x")
        self.check(shop, argv, 10)
        assert ensure_built(shop.pin, BuildOptions())
        shop.tools.forget_calls()
        shop.pin = make_pin(shop.root, "d" * 40)
        self.check(shop, argv, 10)
        receipts.drop(built.bin_dir.parent)
        self.check(shop, argv, 10)

    def test_a_binary_without_the_options(
        self, shop: Workshop, built: Receipt, model: Path
    ) -> None:
        shop.tools.set(help="\n".join(f"--other-{n} N    x" for n in range(30)))
        self.check(shop, ["-m", str(model), "-p", "hi"], 10)


def test_a_later_shard_starts_the_first(
    shop: Workshop, built: Receipt, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second, _ = write_shards(shop.root)
    assert main(["run", "-m", str(second), "-p", "hi"]) == 0
    assert shop.tools.calls("llama-cli")[-1][1] == str(first)
    assert "is a later shard" in capfd.readouterr().err


class TestConfirmed:
    """What the engine must say before a run counts as good."""

    ARGV = ("-p", "hi", "--prefetch", "--fixation", "4", "--keep-recent", "2", "--cache-size", "1G")

    def test_all_is_said(
        self, shop: Workshop, built: Receipt, model: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["run", "-m", str(model), *self.ARGV]) == 0
        out, err = capfd.readouterr()
        assert out == "hello\n"
        assert err == "note: the cache size limits nothing: all routed experts are 27,648 bytes\n"
        text = " ".join(shop.tools.calls("llama-cli")[-1])
        assert "--expert-cache-size 1024 --expert-keep-recent 2 --expert-fixation 4" in text
        assert not list((shop.root / "tmp").iterdir())

    @pytest.mark.parametrize(
        ("knobs", "said"),
        [
            ({"unsaid": ["prefetch thread"]}, "--prefetch"),
            ({"unsaid": ["fixation"]}, "--fixation"),
            ({"unsaid": ["keep-recent"]}, "--keep-recent"),
            ({"unsaid": ["cache size"]}, "--cache-size"),
            ({"unsaid": ["skipping initial"]}, "no line for streaming"),
            ({"slices": 23}, "tracks 23 slices"),
            ({"log": ["x: CPU_REPACK model buffer size =   99.00 MiB"]}, "were repacked"),
        ],
    )
    def test_what_is_not_said_fails_the_run(
        self,
        shop: Workshop,
        built: Receipt,
        model: Path,
        capfd: pytest.CaptureFixture[str],
        knobs: dict[str, object],
        said: str,
    ) -> None:
        shop.tools.set(**knobs)
        assert main(["run", "-m", str(model), *self.ARGV]) == 10
        out, err = capfd.readouterr()
        assert out == "hello\n"
        assert said in err
        assert "error: llama-cli did not confirm" in err

    def test_a_failed_program_speaks_for_itself(
        self, shop: Workshop, built: Receipt, model: Path
    ) -> None:
        shop.tools.set(unsaid=["expert"], exit=7)
        assert main(["run", "-m", str(model), "-p", "hi"]) == 7

    def test_a_program_that_loads_nothing_confirms_nothing(
        self, shop: Workshop, built: Receipt, model: Path
    ) -> None:
        shop.tools.set(unsaid=["expert"])
        assert main(["run", "-m", str(model), "-p", "hi", "--", "--list-devices"]) == 0


class TestAboutThisModel:
    @pytest.mark.parametrize(
        ("argv", "floor"),
        [
            (["--keep-recent", "1"], "--keep-recent 2 or more"),
            (["--", "--override-kv", "qwen2moe.expert_used_count=int:5"], "K from 1 to 4"),
            (["--", "--override-kv", "qwen3moe.expert_used_count=int:2"], "qwen2moe."),
            (
                ["--keep-recent", "2", "--", "--override-kv=qwen2moe.expert_used_count=int:3"],
                "--keep-recent 3 or more",
            ),
        ],
    )
    def test_a_limit_that_cannot_work(
        self,
        shop: Workshop,
        built: Receipt,
        model: Path,
        capfd: pytest.CaptureFixture[str],
        argv: list[str],
        floor: str,
    ) -> None:
        assert main(["run", "-m", str(model), "-p", "hi", *argv]) == 9
        assert floor in capfd.readouterr().err
        assert all(call == ["--help"] for call in shop.tools.calls("llama-cli"))

    def test_fewer_experts_are_noted(
        self, built: Receipt, model: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        extra = ("--override-kv", "qwen2moe.expert_used_count=int:1")
        argv = ["run", "-m", str(model), "-p", "hi", "--keep-recent", "1", "--dry-run", "--json"]
        assert main([*argv, "--", *extra]) == 0
        out, err = capfd.readouterr()
        assert "note: experts per token and layer: 1 instead of 2" in err
        assert json.loads(out)["model"]["bytes_per_token"] == 6 * 1152

    def test_a17_a_draft_model_is_warned_about(
        self, built: Receipt, model: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        argv = ["run", "-m", str(model), "-p", "hi", "--dry-run", "--", "-md", "d.gguf"]
        assert main(argv) == 0
        assert "up to 2.0 times the experts per step" in capfd.readouterr().err
