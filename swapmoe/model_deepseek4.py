"""DeepSeek-V4: compressed attention, hyper-connections, layers that route by token id."""

from math import gcd
from typing import TYPE_CHECKING

from swapmoe.model_rows import (
    EXPERTS,
    FFN_NORM,
    PROBS_BIAS,
    SHARED_EXPERT,
    Architecture,
    Row,
    Value,
    When,
    only,
)

if TYPE_CHECKING:
    from swapmoe.model_spec import ModelSpec


def _is_hashed(spec: "ModelSpec", layer: int) -> bool:
    return layer < spec.hash_layers


def _is_scored(spec: "ModelSpec", layer: int) -> bool:
    return layer >= spec.hash_layers


def _is_ahead(spec: "ModelSpec", layer: int) -> bool:
    return layer >= spec.layers


def _compression(spec: "ModelSpec", layer: int) -> int:
    """DeepSeek-V4's ratio of tokens to compressed keys in a layer; 0 means none."""
    return 0 if _is_ahead(spec, layer) else (0, 4, 128)[layer % 3]


def _ratio_is(*ratios: int) -> When:
    return lambda spec, layer: _compression(spec, layer) in ratios


_COMPRESSOR = (
    *only(_ratio_is(4, 128), Row("attn_compressor_norm", "ones", ("head_dim",))),
    *only(
        _ratio_is(4),
        Row("attn_compressor_kv", "half", ("two_heads", "embd")),
        Row("attn_compressor_gate", "half", ("two_heads", "embd")),
        Row("attn_compressor_ape", "small", ("four", "two_heads")),
        Row("indexer.proj", "half", ("index_heads", "embd")),
        Row("indexer.attn_q_b", "half", ("index_q", "q_rank")),
        Row("indexer_compressor_kv", "half", ("two_index_dim", "embd")),
        Row("indexer_compressor_gate", "half", ("two_index_dim", "embd")),
        Row("indexer_compressor_ape", "small", ("four", "two_index_dim")),
        Row("indexer_compressor_norm", "ones", ("index_dim",)),
    ),
    *only(
        _ratio_is(128),
        Row("attn_compressor_kv", "half", ("head_dim", "embd")),
        Row("attn_compressor_gate", "half", ("head_dim", "embd")),
        Row("attn_compressor_ape", "small", ("ratio", "head_dim")),
    ),
)
_LOW_RANK_ATTENTION = (
    Row("attn_norm", "ones", ("embd",)),
    Row("attn_sinks", "small", ("heads",)),
    Row("attn_q_a", "dense", ("q_rank", "embd")),
    Row("attn_q_a_norm", "sharp", ("q_rank",)),
    Row("attn_q_b", "half", ("q", "q_rank")),
    Row("attn_kv", "dense", ("head_dim", "embd")),
    Row("attn_kv_a_norm", "sharp", ("head_dim",)),
    Row("attn_output_a", "half", ("out_rank", "q_part")),
    Row("attn_output_b", "half", ("embd", "out_rank")),
)
_HYPER_CONNECTIONS = tuple(
    row
    for part in ("attn", "ffn")
    for row in (
        Row(f"hc_{part}_fn", "float", ("hyper_mix", "hyper")),
        Row(f"hc_{part}_base", "small", ("hyper_mix",)),
        Row(f"hc_{part}_scale", "ones", ("three",)),
    )
)
_NEXT_TOKEN = only(
    _is_ahead,
    Row("nextn.eh_proj", "half", ("embd", "two_embd")),
    Row("nextn.enorm", "ones", ("embd",)),
    Row("nextn.hnorm", "ones", ("embd",)),
    Row("nextn.shared_head_norm", "ones", ("embd",)),
)


def _sizes(spec: "ModelSpec") -> dict[str, int]:
    groups = gcd(spec.heads, 2)
    # Another width than the attention's: b11434 divides by zero when they are the same.
    index_dim = -(-2 * spec.head_dim // 64) * 64
    return {
        "q_rank": max(32, spec.embd // 2),
        "q_part": spec.heads * spec.head_dim // groups,
        "out_rank": groups * max(32, spec.embd // 4),
        "hyper": 4 * spec.embd,
        "hyper_mix": 24,
        "two_heads": 2 * spec.head_dim,
        "two_embd": 2 * spec.embd,
        "index_heads": 2,
        "index_dim": index_dim,
        "two_index_dim": 2 * index_dim,
        "index_q": 2 * index_dim,
        "shared_ffn": spec.ffn,
        "one": 1,
        "three": 3,
        "four": 4,
        "ratio": 128,
    }


def _keys(spec: "ModelSpec") -> dict[str, Value]:
    sizes = _sizes(spec)
    blocks = spec.layers + spec.mtp_layers
    groups = gcd(spec.heads, 2)
    return {
        "hash_layer_count": spec.hash_layers,
        "nextn_predict_layers": spec.mtp_layers,
        "expert_shared_count": 1,
        "expert_gating_func": 4,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.5,
        "swiglu_clamp_exp": 10.0,
        "rope.dimension_count": spec.head_dim // 2,
        "attention.q_lora_rank": sizes["q_rank"],
        "attention.output_lora_rank": sizes["out_rank"] // groups,
        "attention.output_group_count": groups,
        "attention.sliding_window": 64,
        "attention.compress_rope_freq_base": 160000.0,
        "attention.compress_ratios": [_compression(spec, layer) for layer in range(blocks)],
        "attention.indexer.head_count": sizes["index_heads"],
        "attention.indexer.key_length": sizes["index_dim"],
        "attention.indexer.top_k": 8,
        "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": 4,
        "hyper_connection.epsilon": 1e-6,
    }


DEEPSEEK4 = Architecture(
    rows=(
        *_LOW_RANK_ATTENTION,
        *_COMPRESSOR,
        *_HYPER_CONNECTIONS,
        *FFN_NORM,
        *EXPERTS,
        *only(_is_hashed, Row("ffn_gate_tid2eid", "ids", ("vocab", "used"))),
        *only(_is_scored, *PROBS_BIAS),
        *SHARED_EXPERT,
        *_NEXT_TOKEN,
    ),
    top=(
        Row("output_hc_fn", "float", ("four", "hyper")),
        Row("output_hc_base", "small", ("four",)),
        Row("output_hc_scale", "ones", ("one",)),
    ),
    sizes=_sizes,
    keys=_keys,
    layer_kinds=frozenset({"hash_layers", "mtp_layers"}),
    one_kv_head=True,
    least_layers=3,
)
