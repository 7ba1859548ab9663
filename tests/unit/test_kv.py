"""What a context keeps, by architecture; tests/e2e compares it with what the programs print."""

from pathlib import Path

import pytest

from swapmoe import attention, compute, gguf_info, kv
from swapmoe.kv import Memory
from swapmoe.sizes import MIB
from tests.support.headers import ROWS, Row, gguf, write

GQA: dict[str, object] = {
    "block_count": 4,
    "embedding_length": 1024,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
}


def memory(tmp_path: Path, arch: str, **keys: object) -> Memory:
    return kv.memory(facts(tmp_path, arch, {**GQA, **keys}))


def facts(tmp_path: Path, arch: str, keys: dict[str, object]) -> gguf_info.ModelFacts:
    pairs = {f"{arch}.{name}": value for name, value in keys.items()}
    return gguf_info.inspect(
        write(tmp_path / f"{arch}.gguf", gguf({"general.architecture": arch, **pairs}, ROWS))
    )


def test_grouped_queries(tmp_path: Path) -> None:
    found = memory(tmp_path, "qwen3moe")
    assert found.per_token("f16") == 4 * 2 * (128 + 128) * 2
    assert found.per_token("q8_0") == 4 * 2 * 2 * 128 // 32 * 34
    assert found.per_token("q4_0") == 4 * 2 * 2 * 128 // 32 * 18
    assert found.nbytes(4096, 512) == 4096 * found.per_token()
    assert not found.checkpoints


def test_contexts_are_rounded_up(tmp_path: Path) -> None:
    found = memory(tmp_path, "qwen3moe")
    assert found.nbytes(1, 512) == found.nbytes(256, 512) == 256 * found.per_token()
    assert found.nbytes(257, 512) == 512 * found.per_token()


def test_head_lengths_may_be_stated(tmp_path: Path) -> None:
    keys = {"attention.key_length": 192, "attention.value_length": 64}
    assert memory(tmp_path, "qwen3moe", **keys).per_token() == 4 * 2 * (192 + 64) * 2


def test_as_many_heads_of_keys_as_of_queries_when_not_stated(tmp_path: Path) -> None:
    keys = {k: v for k, v in GQA.items() if k != "attention.head_count_kv"}
    assert kv.memory(facts(tmp_path, "llama", keys)).per_token() == 4 * 8 * 256 * 2


def test_latent_keys(tmp_path: Path) -> None:
    keys = {
        "attention.head_count_kv": 1,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
    }
    found = memory(tmp_path, "deepseek2", **keys)
    assert found.latent
    assert found.per_token() == 4 * 576 * 2
    indexed = memory(tmp_path, "deepseek32", **keys, **{"attention.indexer.key_length": 128})
    assert indexed.per_token() == 4 * (576 + 128) * 2


def test_sliding_windows(tmp_path: Path) -> None:
    found = memory(tmp_path, "gpt-oss", **{"attention.sliding_window": 128})
    assert found.per_token() == 2 * 2 * 256 * 2
    row = 2 * 2 * 256 * 2
    assert found.window_bytes(512) == 768 * row  # 128 + 512, rounded up to 256
    assert found.nbytes(32768, 512) == (32768 + 768) * row
    assert found.nbytes(512, 512) == (512 + 512) * row
    assert found.checkpoint_bytes() == 128 * row


@pytest.mark.parametrize(
    ("arch", "pattern", "sliding"),
    [
        ("laguna", None, {1, 2, 3}),
        ("exaone-moe", None, {0, 1, 2}),
        ("exaone-moe", 2, {0, 2}),
        ("mimo2", [1, 0, 0, 1], {0, 3}),
        ("cohere2moe", [1, 1, 1, 0], {0, 1, 2}),
        ("afmoe", [1, 0, 0, 1], {0, 3}),  # as b11434 does; b10235 takes no array here
        ("afmoe", 0, {0, 1, 2, 3}),
        ("mimo2", 1, {0, 1, 2, 3}),
        ("maple", [1, 0, 1, 0], {0, 2}),
        ("qwen3moe", 2, set()),
    ],
)
def test_which_layers_slide(tmp_path: Path, arch: str, pattern: object, sliding: set[int]) -> None:
    keys = {**GQA, "attention.sliding_window": 64}
    if pattern is not None:
        keys["attention.sliding_window_pattern"] = pattern
    assert attention.sliding_layers(facts(tmp_path, arch, keys)) == sliding


def test_what_is_newer_than_the_rules_is_said(tmp_path: Path) -> None:
    assert "hy_v4 keeps of past tokens is newer" in memory(tmp_path, "hy_v4", **GQA).assumed


def test_a_window_that_is_not_used_is_said(tmp_path: Path) -> None:
    found = memory(tmp_path, "qwen3moe", **{"attention.sliding_window": 64})
    assert "64 tokens that llama.cpp is not known to use" in found.assumed
    assert found.window == 0


def test_llama4_slides_without_being_told(tmp_path: Path) -> None:
    assert memory(tmp_path, "llama4").window == 8192
    assert memory(tmp_path, "llama4", **{"attention.sliding_window": 0}).window == 0


def test_hybrids(tmp_path: Path) -> None:
    ssm = {"conv_kernel": 4, "inner_size": 2048, "state_size": 128, "group_count": 16}
    keys = {f"ssm.{name}": value for name, value in ssm.items()}
    found = memory(tmp_path, "qwen35moe", **keys)
    assert found.per_token() == 1 * 2 * 256 * 2
    assert found.state_bytes == 3 * 4 * (3 * (2048 + 2 * 16 * 128) + 2048 * 128)
    assert found.checkpoint_bytes() == found.state_bytes
    jamba = memory(tmp_path, "jamba", **keys, **{"attention.head_count_kv": [0, 2, 0, 2]})
    assert jamba.per_token() == 2 * 2 * 256 * 2
    short = {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0, 2]}
    assert memory(tmp_path, "lfm2moe", **short).state_bytes == 2 * 4 * 1024 * 2


def test_prediction_layers(tmp_path: Path) -> None:
    ahead = {"nextn_predict_layers": 1}
    assert memory(tmp_path, "glm4moe", **ahead).per_token() == 4 * 2 * 256 * 2
    assert memory(tmp_path, "mimo2", **ahead).per_token() == 3 * 2 * 256 * 2


def test_diffusion_models_keep_nothing(tmp_path: Path) -> None:
    assert memory(tmp_path, "llada-moe").nbytes(4096, 512) == 0


def test_types_that_do_not_divide_a_head(tmp_path: Path) -> None:
    assert memory(tmp_path, "qwen3moe").fits_type("q8_0")
    narrow = memory(tmp_path, "qwen3moe", **{"attention.key_length": 80})
    assert narrow.fits_type("f16")
    assert not narrow.fits_type("q8_0")
    assert not memory(tmp_path, "grok").fits_type("q8_0")


def test_compute_buffers_grow_with_what_they_hold(tmp_path: Path) -> None:
    keys = {**GQA, "expert_count": 64, "expert_used_count": 8, "expert_feed_forward_length": 512}
    model = facts(tmp_path, "qwen3moe", keys)
    base = compute.buffer_bytes(model, 4096, 512)
    assert base == 512 * (4 * (2 * 8 * 1024 + 8 * 512 + 3 * 1024) + 2 * 4096)
    assert compute.buffer_bytes(model, 4096, 1024) == 2 * base
    assert compute.buffer_bytes(model, 8192, 512) == base + 512 * 2 * 4096
    assert compute.buffer_bytes(model, 256, 512) < base


def test_all_logits_take_their_room(tmp_path: Path) -> None:
    pairs = {"general.architecture": "qwen3moe", "qwen3moe.embedding_length": 64}
    rows = [Row("output.weight", (64, 100_000))]
    model = gguf_info.inspect(write(tmp_path / "m.gguf", gguf(pairs, rows)))
    assert compute.buffer_bytes(model, 4096, 512) < 10 * MIB
    assert compute.buffer_bytes(model, 4096, 512, outputs=512) > 512 * 100_000 * 4
