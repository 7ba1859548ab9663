"""Streaming changes where bytes come from, never what is computed."""

from pathlib import Path

import pytest

from tests.support.llama import Llama, streaming
from tests.support.models import make_tiny, read_slice, write_slice

K_QUANTS = {"embd": 256, "ffn": 256, "shared_ffn": 256, "heads": 16}
MODELS = {
    "qwen2moe": ("tiny", {}),
    "qwen3moe": ("tiny-qwen3moe", {}),
    "qwen3moe-wide": ("tiny-qwen3moe", {"experts": 32, "used": 8, "layers": 4, "locality": 0.5}),
    "qwen2moe-skewed": ("tiny", {"experts": 16, "used": 2, "locality": 0.9}),
    "Q8_0": ("tiny", {"type": "Q8_0"}),
    "F16": ("tiny", {"type": "F16"}),
    "F32": ("tiny-qwen3moe", {"type": "F32"}),
    "Q4_K": ("tiny", {"type": "Q4_K", "dense_type": "Q6_K", **K_QUANTS}),
    "IQ4_NL": ("tiny-qwen3moe", {"type": "IQ4_NL", **K_QUANTS}),
    "IQ1_M": ("tiny-qwen3moe", {"type": "IQ1_M", "dense_type": "Q8_0", **K_QUANTS}),
    "IQ2_XXS": ("tiny-qwen3moe", {"type": "IQ2_XXS", "dense_type": "Q8_0", **K_QUANTS}),
}
PLAIN = ("--no-repack", "--no-warmup")
PATCHED_MODES = {
    "off": PLAIN,
    "fault": ("--no-repack", *streaming("fault")),
    "mmap": ("--no-repack", *streaming("mmap")),
    "direct": ("--no-repack", *streaming("direct")),
    "direct, 1 MiB": ("--no-repack", *streaming("direct"), "--expert-cache-size", "1"),
}


def assert_same(base: Llama, patched: Llama, model: Path, work: Path) -> None:
    """Compare tokens, keys, values and logits of every patched mode with the unpatched build's."""
    session = base.session(model, work, *PLAIN)
    logits = base.logits(model, work, *PLAIN)
    for mode, flags in PATCHED_MODES.items():
        found = patched.session(model, work, *flags)
        assert found.tokens == session.tokens, mode
        assert found.state == session.state, mode
        assert patched.logits(model, work, *flags) == logits, mode


@pytest.mark.parametrize("name", MODELS)
def test_same_tokens_and_logits(base: Llama, patched: Llama, tmp_path: Path, name: str) -> None:
    preset, changes = MODELS[name]
    assert_same(base, patched, make_tiny(tmp_path, preset, **changes), tmp_path)


@pytest.mark.parametrize("preset", ["tiny", "tiny-qwen3moe"])
def test_same_tokens_and_logits_from_shards(
    base: Llama, patched: Llama, tmp_path: Path, preset: str
) -> None:
    whole = make_tiny(tmp_path, preset)
    split = make_tiny(tmp_path, preset, shards=4)
    assert_same(base, patched, split, tmp_path)
    for mode in ("mmap", "direct"):
        flags = PATCHED_MODES[mode]
        assert patched.logits(whole, tmp_path, *flags) == patched.logits(split, tmp_path, *flags)


def test_off_is_the_unpatched_program_at_default_flags(
    base: Llama, patched: Llama, tmp_path: Path
) -> None:
    model = make_tiny(tmp_path, "tiny-qwen3moe", **K_QUANTS)
    assert patched.session(model, tmp_path) == base.session(model, tmp_path)
    assert patched.logits(model, tmp_path) == base.logits(model, tmp_path)


@pytest.mark.parametrize("io", ["fault", "mmap", "direct"])
def test_streaming_with_repacking_allowed(
    base: Llama, patched: Llama, tmp_path: Path, io: str
) -> None:
    """Dense weights that nothing repacks, so that the kernels are those of the plain build."""
    model = make_tiny(tmp_path, dense_type="F32", embd_type="F32")
    flags = streaming(io)
    assert patched.session(model, tmp_path, *flags) == base.session(model, tmp_path, *PLAIN)
    assert patched.logits(model, tmp_path, *flags) == base.logits(model, tmp_path, *PLAIN)


@pytest.mark.parametrize("io", ["fault", "mmap", "direct"])
def test_runs_repeat_themselves(patched: Llama, tmp_path: Path, io: str) -> None:
    model = make_tiny(tmp_path, "tiny-qwen3moe")
    first, second = (patched.logits(model, tmp_path, *streaming(io)) for _ in range(2))
    assert first == second
    sessions = {patched.session(model, tmp_path, *streaming(io)) for _ in range(3)}
    assert len(sessions) == 1


@pytest.mark.parametrize("build", ["base", "patched"])
def test_a_wrong_slice_would_show(
    request: pytest.FixtureRequest, tmp_path: Path, build: str
) -> None:
    """Each slice, put in place of its neighbour, changes the logits: none is out of sight."""
    llama: Llama = request.getfixturevalue(build)
    flags = PLAIN if build == "base" else PATCHED_MODES["mmap"]
    model = make_tiny(tmp_path)
    right = llama.logits(model, tmp_path, *flags)
    unseen = []
    for tensor in (
        f"blk.{n}.ffn_{k}_exps.weight" for n in range(2) for k in ("gate", "up", "down")
    ):
        for expert in range(4):
            own = read_slice(model, tensor, expert)
            write_slice(model, tensor, expert, read_slice(model, tensor, (expert + 1) % 4))
            if llama.logits(model, tmp_path, *flags) == right:
                unseen.append((tensor, expert))
            write_slice(model, tensor, expert, own)
    assert not unseen
    assert llama.logits(model, tmp_path, *flags) == right


@pytest.mark.parametrize("build", ["base", "patched"])
def test_a_single_wrong_byte_would_show(
    request: pytest.FixtureRequest, tmp_path: Path, build: str
) -> None:
    llama: Llama = request.getfixturevalue(build)
    flags = PLAIN if build == "base" else PATCHED_MODES["mmap"]
    model = make_tiny(tmp_path)
    right = llama.logits(model, tmp_path, *flags)
    block = read_slice(model, "blk.0.ffn_down_exps.weight", 1)[:3]
    write_slice(model, "blk.0.ffn_down_exps.weight", 1, block[:2] + bytes([block[2] ^ 0xFF]))
    assert llama.logits(model, tmp_path, *flags) != right


def test_output_is_not_one_token_over_and_over(base: Llama, tmp_path: Path) -> None:
    """Otherwise the comparisons above would compare nothing."""
    for preset, changes in MODELS.values():
        model = make_tiny(tmp_path, preset, **changes)
        answer = base.session(model, tmp_path, *PLAIN).tokens[-32:]
        assert len(set(answer)) > 4, (preset, changes)
