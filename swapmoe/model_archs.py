"""The architectures that generated models can have."""

from typing import TYPE_CHECKING

from swapmoe.model_deepseek4 import DEEPSEEK4
from swapmoe.model_rows import (
    ATTENTION,
    DENSE_FFN,
    DOWN_EXPERTS,
    EXPERTS,
    FFN_NORM,
    PROBS_BIAS,
    QK_NORMS,
    ROUTER,
    SHARED_EXPERT,
    Architecture,
    Row,
    Value,
    only,
)

if TYPE_CHECKING:
    from swapmoe.model_spec import ModelSpec

_EXPERT_BIASES = (
    Row("ffn_gate_inp", "small", ("experts",), "bias"),
    Row("ffn_gate_exps", "small", ("experts", "ffn"), "bias"),
    Row("ffn_up_exps", "small", ("experts", "ffn"), "bias"),
    Row("ffn_down_exps", "small", ("experts", "embd"), "bias"),
)


def _is_dense(spec: "ModelSpec", layer: int) -> bool:
    return layer < spec.dense_layers


def _is_routed(spec: "ModelSpec", layer: int) -> bool:
    return layer >= spec.dense_layers


def _laguna_keys(spec: "ModelSpec") -> dict[str, Value]:
    return {
        "leading_dense_block_count": spec.dense_layers,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.5,
        "attention.sliding_window": 64,
        "rope.dimension_count": spec.head_dim // 2,
        "rope.dimension_count_swa": spec.head_dim,
        "rope.freq_base_swa": 10000.0,
    }


def _gemma4_keys(spec: "ModelSpec") -> dict[str, Value]:
    return {
        "embedding_length_per_layer_input": 0,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": [layer % 2 for layer in range(spec.layers)],
        "attention.key_length_swa": spec.head_dim,
        "attention.value_length_swa": spec.head_dim,
        "rope.freq_base_swa": 10000.0,
        "final_logit_softcapping": 30.0,
    }


ARCHITECTURES = {
    "qwen2moe": Architecture(
        rows=(
            *ATTENTION,
            *FFN_NORM,
            *EXPERTS,
            Row("ffn_gate_inp_shexp", "router", ("embd",)),
            *SHARED_EXPERT,
        ),
        square=True,
    ),
    "qwen3moe": Architecture(rows=(*ATTENTION, *QK_NORMS, *FFN_NORM, *EXPERTS)),
    "qwen3": Architecture(rows=(*ATTENTION, *QK_NORMS, *FFN_NORM, *DENSE_FFN)),
    "gpt-oss": Architecture(
        rows=(
            *ATTENTION,
            Row("attn_output", "small", ("embd",), "bias"),
            Row("attn_sinks", "small", ("heads",)),
            Row("post_attention_norm", "ones", ("embd",)),
            *EXPERTS,
            *_EXPERT_BIASES,
        ),
        keys=lambda spec: {"attention.sliding_window": 64, "rope.dimension_count": spec.head_dim},
    ),
    "gemma4": Architecture(
        rows=(
            *ATTENTION,
            *QK_NORMS,
            Row("post_attention_norm", "ones", ("embd",)),
            *FFN_NORM,
            *DENSE_FFN,
            *(
                Row(name, "ones", ("embd",))
                for name in ("post_ffw_norm", "post_ffw_norm_1", "post_ffw_norm_2")
            ),
            Row("pre_ffw_norm_2", "ones", ("embd",)),
            *ROUTER,
            Row("ffn_gate_inp", "near-one", ("embd",), "scale"),
            Row("ffn_gate_up_exps", "expert", ("experts", "two_ffn", "embd")),
            *DOWN_EXPERTS,
            Row("ffn_down_exps", "near-one", ("experts",), "scale"),
        ),
        top=(Row("rope_freqs", "ones", ("half_head",)),),
        sizes=lambda spec: {"two_ffn": 2 * spec.ffn, "half_head": spec.head_dim // 2},
        keys=_gemma4_keys,
    ),
    "laguna": Architecture(
        rows=(
            *ATTENTION,
            *QK_NORMS,
            Row("attn_gate", "dense", ("heads", "embd")),
            *FFN_NORM,
            *only(_is_dense, *DENSE_FFN),
            *only(_is_routed, *EXPERTS, *PROBS_BIAS, *SHARED_EXPERT),
        ),
        keys=_laguna_keys,
        layer_kinds=frozenset({"dense_layers"}),
    ),
    "deepseek4": DEEPSEEK4,
}
