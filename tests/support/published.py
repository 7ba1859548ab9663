"""Headers shaped like published models, with what others computed for them.

Only what the arithmetic needs: experts in full, attention and embeddings roughly.
"""

from dataclasses import dataclass, field

from tests.support.headers import F32, IQ1_M, Q2_K, Q4_K, Q6_K, Row


@dataclass(frozen=True)
class Published:
    """A published model's shape, and what is known of it: GB per token, GB of experts."""

    arch: str
    layers: int
    embd: int
    ffn: int
    used: int
    types: tuple[int, int]
    token_gb: float
    pool_gb: float
    vocab: int
    keys: dict[str, object] = field(default_factory=dict)
    experts: int = 256
    hashed: int = 0

    def pairs(self) -> dict[str, object]:
        """Metadata."""
        keys: dict[str, object] = {
            "block_count": self.layers,
            "context_length": 131072,
            "embedding_length": self.embd,
            "expert_count": self.experts,
            "expert_used_count": self.used,
            "expert_feed_forward_length": self.ffn,
            **self.keys,
        }
        named: dict[str, object] = {f"{self.arch}.{name}": value for name, value in keys.items()}
        return {"general.architecture": self.arch, **named}

    def rows(self) -> list[Row]:
        """Tensors."""
        inner, down = self.types
        rows = [Row("token_embd.weight", (self.embd, self.vocab), Q4_K)]
        for layer in range(self.layers):
            wide, back = (self.embd, self.ffn, self.experts), (self.ffn, self.embd, self.experts)
            rows += [
                Row(f"blk.{layer}.attn_q.weight", (self.embd, self.embd), Q4_K),
                Row(f"blk.{layer}.ffn_gate_inp.weight", (self.embd, self.experts), F32),
                Row(f"blk.{layer}.ffn_gate_exps.weight", wide, inner),
                Row(f"blk.{layer}.ffn_up_exps.weight", wide, inner),
                Row(f"blk.{layer}.ffn_down_exps.weight", back, down),
            ]
        rows += [
            Row(f"blk.{layer}.ffn_gate_tid2eid.weight", (8, 512), F32)
            for layer in range(self.hashed)
        ]
        return [*rows, Row("output.weight", (self.embd, self.vocab), Q6_K)]


_GQA: dict[str, object] = {
    "attention.head_count": 32,
    "attention.head_count_kv": 4,
    "attention.key_length": 128,
    "attention.value_length": 128,
}
_HYBRID: dict[str, object] = _GQA | {
    "full_attention_interval": 4,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 4096,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
}
_LOW_BIT = (IQ1_M, Q2_K)

PUBLISHED = {
    "Qwen3.5-35B-A3B Q4_K_M": Published(
        "qwen35moe", 40, 2048, 512, 8, (Q4_K, Q4_K), 0.56, 17.8, 248_320, _HYBRID
    ),
    "Qwen3.5-122B-A10B Q2_K": Published(
        "qwen35moe", 48, 3072, 1024, 8, (Q2_K, Q2_K), 1.24, 39.6, 248_320, _HYBRID
    ),
    "MiniMax-M2.7 IQ1_M": Published(
        "minimax-m2", 62, 3072, 1536, 8, _LOW_BIT, 1.81, 57.8, 200_064, _GQA
    ),
    "DSV4-Flash-0731 IQ1_M": Published(
        "deepseek4",
        43,
        4096,
        2048,
        6,
        _LOW_BIT,
        1.73,
        73.9,
        129_280,
        {
            "hash_layer_count": 3,
            "attention.head_count": 64,
            "attention.head_count_kv": 1,
            "attention.key_length": 512,
            "attention.indexer.key_length": 128,
            "attention.sliding_window": 128,
            "attention.compress_ratios": [(0, 0, 4, 128)[layer % 4] for layer in range(43)],
        },
        hashed=3,
    ),
}
