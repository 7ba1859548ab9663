"""Small MoE models whose tensors the loader itself tells, given metadata.

For architectures that upstream's test program does not write; its numbers are used here.
"""

from pathlib import Path

from gguf import GGUFWriter

from swapmoe.gguf_keys import add_key
from swapmoe.model_rows import Value
from swapmoe.run import capture

SOURCE = Path(__file__).with_name("template.cpp")

COMMON: dict[str, Value] = {
    "vocab_size": 128,
    "context_length": 128,
    "embedding_length": 256,
    "block_count": 3,
    "leading_dense_block_count": 1,
    "feed_forward_length": 384,
    "attention.head_count": 2,
    "attention.head_count_kv": 2,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": 2,
    "logit_scale": 1.0,
    "expert_feed_forward_length": 384,
    "expert_count": 2,
    "expert_used_count": 1,
    "expert_shared_count": 1,
    "expert_shared_feed_forward_length": 384,
    "expert_gating_func": 2,
    "ssm.inner_size": 512,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 128,
    "ssm.time_step_rank": 2,
    "ssm.group_count": 2,
}
_BY_LAYER: dict[str, Value] = {"attention.sliding_window_pattern": [0, 1, 0]}
_HYBRID: dict[str, Value] = {
    "attention.head_count": [2, 0, 2],
    "attention.head_count_kv": [2, 0, 2],
}
TEMPLATES: dict[str, dict[str, Value]] = {
    "afmoe": {},
    "cohere2moe": {},
    "exaone-moe": {},
    "granitehybrid": _HYBRID,
    "jamba": _HYBRID,
    "mellum": {},
    "mimo2": _BY_LAYER,
    "nemotron_h_moe": _HYBRID | {"feed_forward_length": [0, 0, 384]},
    "step35": _BY_LAYER,
}
"""What an architecture has instead of COMMON's values."""


def write_keys(arch: str, path: Path) -> None:
    """Write a GGUF file that has metadata and no tensors."""
    writer = GGUFWriter(path, arch)
    writer.add_tokenizer_model("no_vocab")
    for name, value in (COMMON | TEMPLATES[arch]).items():
        add_key(writer, f"{arch}.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_template(program: Path, arch: str, target: Path) -> Path:
    """Write a model; `program` is template.cpp, compiled."""
    keys = target.with_suffix(".keys")
    write_keys(arch, keys)
    capture([program, keys, target], timeout=60)
    return target
