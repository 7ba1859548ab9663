"""Reading that goes wrong: an error with its cause, or the right answer another way.

Never wrong bytes, never a hang (every program here has a time limit).
"""

import errno
import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.faults import DIRECT, Faults, ask, compile_shim, server
from tests.support.llama import TEXT, Llama, Session
from tests.support.models import cut_short, make_tiny, read_slice, write_slice

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloads a library")

SHAPE = {"experts": 32, "used": 8, "layers": 4}
PROMPT = TEXT[:89]
LATE = 200
"""A read that is not among the first."""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def faults(shim: Path, tmp_path: Path) -> Faults:
    return Faults(shim, tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny(tmp_path, "tiny-qwen3moe", **SHAPE)


@pytest.fixture(scope="module")
def right(base: Llama, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """What the unpatched build answers."""
    folder = tmp_path_factory.mktemp("right")
    model = make_tiny(folder, "tiny-qwen3moe", **SHAPE)
    return base.session(model, folder, "--no-repack", "--no-warmup")


def session(patched: Llama, model: Path, work: Path, env: dict[str, str], *flags: str) -> Session:
    return patched.session(model, work, "--no-repack", *DIRECT, *flags, env=env)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"errno": errno.EIO, "from": LATE}, "errno"),
        ({"errno": errno.EIO}, "errno"),
        ({"errno": errno.ENOMEM, "from": LATE}, "errno"),
        ({"end": 98 * 4096}, "end"),
    ],
)
@pytest.mark.parametrize("prefetch", [False, True])
def test_a_read_that_fails_ends_the_program_and_is_named(
    patched: Llama, faults: Faults, model: Path, settings: dict[str, int], kind: str, prefetch: bool
) -> None:
    flags = ("--expert-prefetch",) if prefetch else ()
    env = faults.env(**settings)
    done = patched.complete(model, *DIRECT, *flags, env=env, check=False)
    assert faults.happened() == {kind}
    assert done.returncode > 0
    # Nothing comes, and still the file is said to be as long as it was.
    reason = "reads return less" if kind == "end" else os.strerror(settings["errno"])
    assert f"expert_stream: cannot read {model} at " in done.stderr
    assert f": {reason}" in done.stderr
    assert "failed to eval" in done.stderr


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"eintr": 3}, "eintr"),
        ({"short": 4096}, "short"),
        ({"slow": 3000}, "slow"),
        ({"errno": errno.EIO, "at": 1, "slow": 1}, "errno"),
    ],
)
def test_what_can_be_repeated_is_repeated(
    patched: Llama,
    right: Session,
    faults: Faults,
    model: Path,
    tmp_path: Path,
    settings: dict[str, int],
    kind: str,
) -> None:
    """The first read only asks whether the file can be read past the page cache."""
    assert session(patched, model, tmp_path, faults.env(**settings)) == right
    assert kind in faults.happened()


@pytest.mark.parametrize(
    ("settings", "kind"),
    [({"open_direct": errno.EINVAL}, "open"), ({"direct": errno.EINVAL}, "direct")],
)
@pytest.mark.parametrize("short", [0, 1000])
def test_direct_reads_refused_means_buffered_ones(
    patched: Llama,
    right: Session,
    faults: Faults,
    model: Path,
    tmp_path: Path,
    settings: dict[str, int],
    kind: str,
    short: int,
) -> None:
    """Short reads of any length too: nothing has to be aligned then."""
    env = faults.env(**settings, short=short)
    assert session(patched, model, tmp_path, env) == right
    assert kind in faults.happened()
    log = patched.complete(model, *DIRECT, n=1, env=env).stderr
    assert "buffered reads (the file system refuses direct I/O)" in log


def test_short_reads_within_a_block_are_right_or_an_error(
    patched: Llama, faults: Faults, model: Path
) -> None:
    """No filesystem does that to direct reads; still nothing may be made up."""
    plain = patched.complete(model, *DIRECT, n=12).stdout
    env = faults.env(short=1000)
    done = patched.complete(model, *DIRECT, n=12, env=env, check=False)
    assert done.stdout == plain or f"cannot read {model}" in done.stderr
    assert faults.happened() == {"short"}


def test_too_many_open_files_is_named_at_the_start(
    patched: Llama, faults: Faults, model: Path
) -> None:
    env = faults.env(open=errno.EMFILE)
    done = patched.complete(model, *DIRECT, n=1, env=env, check=False)
    assert done.returncode > 0
    assert f"cannot open {model} once more: {os.strerror(errno.EMFILE)}" in done.stderr


def test_no_memory_for_the_arena_is_an_error(patched: Llama, faults: Faults, model: Path) -> None:
    env = faults.env(mmap=100_000)
    done = patched.complete(model, *DIRECT, n=1, env=env, check=False)
    assert faults.happened() == {"mmap"}
    assert done.returncode > 0
    assert "error loading model" in done.stderr


def test_a_truncated_file_is_refused_at_the_start(patched: Llama, model: Path) -> None:
    cut_short(model, 100_000)
    done = patched.complete(model, *DIRECT, n=1, check=False)
    assert done.returncode > 0
    assert "corrupted or incomplete" in done.stderr


def test_a_model_in_memory_already(patched: Llama, right: Session, tmp_path: Path) -> None:
    """Files on tmpfs; whether that takes direct reads depends on the kernel."""
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        pytest.skip("no tmpfs to write to")
    model = shutil.copy(
        make_tiny(tmp_path, "tiny-qwen3moe", **SHAPE), folder / f"{os.getpid()}.gguf"
    )
    try:
        assert session(patched, Path(model), tmp_path, {}) == right
    finally:
        Path(model).unlink()


# with llama-server: the process lives, and the next request is right


def right_text(patched: Llama, model: Path, tmp_path: Path) -> str:
    """What the server says when nothing is wrong, without streaming."""
    with server(patched.bin_dir, model, tmp_path / "plain.log", {}, "--no-repack") as plain:
        text = ask(plain, PROMPT).text
        assert text
        return text


@pytest.mark.parametrize(
    "settings",
    [{"errno": errno.EIO}, {"end": 300_000}, {"errno": errno.EIO, "slow": 2000}],
    ids=["EIO", "end", "EIO slowly"],
)
@pytest.mark.parametrize("prefetch", [False, True])
def test_the_server_outlives_errors(
    patched: Llama,
    faults: Faults,
    model: Path,
    tmp_path: Path,
    settings: dict[str, int],
    prefetch: bool,
) -> None:
    wanted = right_text(patched, model, tmp_path)
    flags = ("--no-repack", *DIRECT, *(("--expert-prefetch",) if prefetch else ()))
    env = faults.env(**settings, when=str(faults.switch))
    with server(patched.bin_dir, model, tmp_path / "log", env, *flags) as found:
        for _ in range(2):
            assert ask(found, PROMPT).text == wanted
            faults.switch.touch()
            failed = ask(found, PROMPT)
            assert (failed.text, bool(failed.error)) == ("", True)
            faults.switch.unlink()
        assert ask(found, PROMPT).text == wanted
        assert found.metrics()["expert_io_errors_total"] >= 2
        assert found.wrapper.poll() is None
    assert f"expert_stream: cannot read {model} at " in (tmp_path / "log").read_text()


def test_the_server_goes_on_after_an_error_in_the_middle_of_an_answer(
    patched: Llama, faults: Faults, model: Path, tmp_path: Path
) -> None:
    wanted = right_text(patched, model, tmp_path)
    env = faults.env(errno=errno.EIO, at=LATE)
    flags = ("--no-repack", *DIRECT)
    with server(patched.bin_dir, model, tmp_path / "log", env, *flags) as found:
        answers = [ask(found, PROMPT) for _ in range(4)]
        assert faults.happened() == {"errno"}
        assert sum(bool(answer.error) for answer in answers) <= 1  # 0: it was only read ahead
        assert {answer.text for answer in answers if not answer.error} == {wanted}


def test_a_file_replaced_by_another_is_used_as_it_was(
    patched: Llama, model: Path, tmp_path: Path
) -> None:
    """Renaming leaves the open file alone."""
    wanted = right_text(patched, model, tmp_path)
    other = make_tiny(tmp_path, "tiny-qwen3moe", **SHAPE, seed=2)
    flags = ("--no-repack", *DIRECT)
    with server(patched.bin_dir, model, tmp_path / "log", {}, *flags) as found:
        assert ask(found, PROMPT).text == wanted
        other.replace(model)
        assert ask(found, PROMPT).text == wanted


def overwrite(model: Path) -> None:
    for expert in range(SHAPE["experts"]):
        data = read_slice(model, "blk.1.ffn_up_exps.weight", expert)
        write_slice(model, "blk.1.ffn_up_exps.weight", expert, data[::-1])


def touch(model: Path) -> None:
    os.utime(model)


def cut_experts(model: Path) -> None:
    """Cut the file within its experts, and with them all dense weights behind."""
    os.truncate(model, model.stat().st_size // 2)


@pytest.mark.parametrize("change", [overwrite, touch, cut_short, cut_experts])
def test_a_file_changed_in_place_ends_requests(
    patched: Llama, model: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    flags = ("--no-repack", *DIRECT)
    with server(patched.bin_dir, model, tmp_path / "log", {}, *flags) as found:
        assert ask(found, PROMPT).text
        time.sleep(0.05)  # the clock of file times may be coarse
        change(model)
        for _ in range(2):
            failed = ask(found, PROMPT)
            assert (failed.text, bool(failed.error)) == ("", True)
        assert found.wrapper.poll() is None
    assert f"expert_stream: {model} changed while in use" in (tmp_path / "log").read_text()


def test_a_file_overwritten_during_a_pass_does_not_go_unnoticed(
    patched: Llama, faults: Faults, model: Path, tmp_path: Path
) -> None:
    """Reads so slow that the file changes in the middle of the prompt."""
    env = faults.env(slow=20_000)
    wanted = right_text(patched, model, tmp_path)
    flags = ("--no-repack", *DIRECT, "--expert-io-threads", "1")
    with server(patched.bin_dir, model, tmp_path / "log", env, *flags) as found:
        timer = threading.Timer(1.0, overwrite, [model])
        timer.start()
        answer = ask(found, PROMPT, n=1)
        timer.join()
        assert answer.error or wanted.startswith(answer.text)
        assert answer.error


@pytest.mark.parametrize("limit", ["RLIMIT_MEMLOCK", "RLIMIT_NOFILE"])
def test_low_limits(patched: Llama, model: Path, tmp_path: Path, limit: str) -> None:
    """Nothing is locked, and few files are open."""
    wanted = right_text(patched, model, tmp_path)
    value = {"RLIMIT_MEMLOCK": 0, "RLIMIT_NOFILE": 48}[limit]

    def lower() -> None:
        resource.setrlimit(getattr(resource, limit), (value, value))

    flags = ("--no-repack", *DIRECT)
    with server(patched.bin_dir, model, tmp_path / "log", {}, *flags, setup=lower) as found:
        assert ask(found, PROMPT).text == wanted
