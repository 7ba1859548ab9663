"""The pieces that tensor tables of architectures are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swapmoe.model_spec import ModelSpec

Value = bool | int | float | str | list[int]
When = Callable[["ModelSpec", int], bool]


@dataclass(frozen=True)
class Row:
    """A tensor: GGUF name, role, and the spec sizes it has, slowest first.

    `when` says which layers have it (all, when None); a layer may lie behind the last, in the
    block that predicts further tokens.
    """

    name: str
    role: str
    dims: tuple[str, ...]
    suffix: str = "weight"
    when: When | None = None


@dataclass(frozen=True)
class Architecture:
    """What a model of an architecture holds.

    `rows` come once per layer, `top` once per model. `sizes` and `keys` add to the spec's sizes and
    to the common metadata. `layer_kinds` are the optional counts of the spec that apply, `square`
    says that the head size is embd / heads, not a value of its own, and llama.cpp crashes on models
    of fewer than `least_layers`.
    """

    rows: tuple[Row, ...]
    top: tuple[Row, ...] = ()
    sizes: Callable[["ModelSpec"], dict[str, int]] = lambda spec: {}
    keys: Callable[["ModelSpec"], dict[str, Value]] = lambda spec: {}
    layer_kinds: frozenset[str] = frozenset()
    square: bool = False
    one_kv_head: bool = False
    least_layers: int = 1

    @property
    def names(self) -> set[str]:
        """The names of the tensors of a layer."""
        return {row.name for row in self.rows}


def only(when: When, *rows: Row) -> tuple[Row, ...]:
    """Return the rows for the layers that `when` names."""
    return tuple(Row(row.name, row.role, row.dims, row.suffix, when) for row in rows)


ATTENTION = (
    Row("attn_norm", "ones", ("embd",)),
    Row("attn_q", "dense-sharp", ("q", "embd")),
    Row("attn_k", "dense-sharp", ("kv", "embd")),
    Row("attn_v", "dense", ("kv", "embd")),
    Row("attn_output", "dense-out", ("embd", "q")),
)
QK_NORMS = (
    Row("attn_q_norm", "sharp", ("head_dim",)),
    Row("attn_k_norm", "sharp", ("head_dim",)),
)
FFN_NORM = (Row("ffn_norm", "ones", ("embd",)),)
ROUTER = (Row("ffn_gate_inp", "router", ("experts", "embd")),)
DOWN_EXPERTS = (Row("ffn_down_exps", "expert-out", ("experts", "embd", "ffn")),)
EXPERTS = (
    *ROUTER,
    Row("ffn_gate_exps", "expert", ("experts", "ffn", "embd")),
    Row("ffn_up_exps", "expert", ("experts", "ffn", "embd")),
    *DOWN_EXPERTS,
)
DENSE_FFN = (
    Row("ffn_gate", "dense", ("ffn", "embd")),
    Row("ffn_up", "dense", ("ffn", "embd")),
    Row("ffn_down", "dense-out", ("embd", "ffn")),
)
SHARED_EXPERT = (
    Row("ffn_gate_shexp", "dense", ("shared_ffn", "embd")),
    Row("ffn_up_shexp", "dense", ("shared_ffn", "embd")),
    Row("ffn_down_shexp", "dense-out", ("embd", "shared_ffn")),
)
PROBS_BIAS = (Row("exp_probs_b", "small", ("experts",), "bias"),)
