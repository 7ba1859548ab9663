"""What streaming says, counts and leaves alone."""

from pathlib import Path

import pytest

from swapmoe.model_spec import tensors
from tests.support.llama import Llama, repacked_mib, statistics, streaming
from tests.support.models import make_tiny, tiny_spec

IO = ("fault", "mmap")
# Big enough to see in buffer sizes, which are printed in hundredths of a MiB.
WIDE = {"experts": 32, "used": 4, "embd": 128, "heads": 8, "ffn": 128}


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("shards", [1, 3])
def test_says_what_it_tracks(patched: Llama, tmp_path: Path, io: str, shards: int) -> None:
    log = patched.complete(make_tiny(tmp_path, shards=shards), *streaming(io), n=2).stderr
    assert (
        "expert streaming enabled — skipping initial mmap prefetch for routed expert tensors" in log
    )
    assert "expert_stream: tracking 24 routed expert slices" in log
    assert f"expert_stream: io = {io}" in log


def test_auto_is_mmap(patched: Llama, tmp_path: Path) -> None:
    model = make_tiny(tmp_path)
    assert "expert_stream: io = mmap" in patched.complete(model, *streaming("auto"), n=2).stderr


def test_environment_turns_it_on(patched: Llama, tmp_path: Path) -> None:
    model = make_tiny(tmp_path)
    env = {"LLAMA_ARG_EXPERT_STREAMING": "1", "LLAMA_ARG_EXPERT_IO": "fault"}
    log = patched.complete(model, "--no-warmup", n=2, env=env).stderr
    assert "expert_stream: io = fault" in log


def test_off_says_nothing(patched: Llama, tmp_path: Path) -> None:
    assert "expert_stream" not in patched.complete(make_tiny(tmp_path), n=2).stderr


@pytest.mark.parametrize("io", IO)
def test_experts_are_never_repacked(base: Llama, patched: Llama, tmp_path: Path, io: str) -> None:
    """A01: a repacked copy of the experts is what gets large models killed at load."""
    spec = tiny_spec("tiny-qwen3moe", **WIDE)
    experts = spec.slices * spec.slice_bytes / 2**20
    dense = sum(t.nbytes for t in tensors(spec)) / 2**20 - experts
    model = make_tiny(tmp_path, "tiny-qwen3moe", **WIDE)
    unpatched = repacked_mib(base.complete(model, n=2).stderr)
    assert unpatched >= experts * 0.99
    assert repacked_mib(patched.complete(model, n=2).stderr) == unpatched
    assert (
        repacked_mib(patched.complete(model, *streaming(io), n=2).stderr) < dense + 0.02 < experts
    )


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("preset", ["tiny", "tiny-qwen3moe"])
def test_statistics_count_what_was_routed(
    patched: Llama, tmp_path: Path, preset: str, io: str
) -> None:
    spec = tiny_spec(preset, **WIDE)
    model = make_tiny(tmp_path, preset, **WIDE)
    log = patched.complete(model, *streaming(io), prompt="a", n=20).stderr
    counted = statistics(log)
    assert counted.passes == 20
    assert counted.routed == 20 * spec.layers * spec.used * 3
    assert counted.hint_errors == 0
    if io == "fault":
        assert (counted.hinted, counted.hint_bytes) == (0, 0)
    else:
        assert 0 < counted.hinted <= counted.routed
        assert counted.hint_bytes >= counted.hinted * spec.slice_bytes


def test_prompt_passes_count_each_slice_once(patched: Llama, tmp_path: Path) -> None:
    spec = tiny_spec(**WIDE)
    log = patched.complete(make_tiny(tmp_path, **WIDE), *streaming("mmap"), n=1).stderr
    counted = statistics(log)
    assert counted.passes == 1
    assert spec.layers * spec.used * 3 < counted.routed <= spec.slices


def test_warm_up_does_not_sweep_all_experts(patched: Llama, tmp_path: Path) -> None:
    """A03: with warm-up forced on, it routes to the normal number of experts."""
    spec = tiny_spec(**WIDE)
    flags = [flag for flag in streaming("mmap") if flag != "--no-warmup"]
    counted = statistics(patched.complete(make_tiny(tmp_path, **WIDE), *flags, n=1).stderr)
    # The warm-up pass has two tokens; the prompt may need every slice.
    assert counted.routed <= spec.slices + 2 * spec.layers * spec.used * 3


@pytest.mark.parametrize("io", IO)
def test_dense_model_runs_as_if_streaming_were_off(
    base: Llama, patched: Llama, tmp_path: Path, io: str
) -> None:
    """Draft models are often dense: the programs warn, `swapmoe run` refuses."""
    model = make_tiny(tmp_path, "tiny-dense")
    log = patched.complete(model, *streaming(io), n=2).stderr
    assert "expert_stream: model has no routed expert tensors" in log
    assert "expert_stream: tracking" not in log
    plain = base.session(model, tmp_path, "--no-warmup")
    assert patched.session(model, tmp_path, *streaming(io)) == plain


@pytest.mark.parametrize("mode", ["none", "mlock", "dio"])
def test_load_modes_that_copy_the_file_are_refused(
    patched: Llama, tmp_path: Path, mode: str
) -> None:
    model = make_tiny(tmp_path)
    done = patched.complete(model, *streaming("mmap"), "--load-mode", mode, n=2, check=False)
    assert done.returncode not in (0, -6, -11)
    assert "expert" in done.stderr


def test_unknown_io_is_refused(patched: Llama, tmp_path: Path) -> None:
    done = patched.complete(make_tiny(tmp_path), *streaming("carrier-pigeon"), n=2, check=False)
    assert done.returncode not in (0, -6, -11)
    assert "--expert-io" in done.stderr
