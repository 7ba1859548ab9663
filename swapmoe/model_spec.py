"""Shapes of generated models: the spec, presets, and the tensor tables of the architectures."""

import hashlib
import json
from dataclasses import asdict, dataclass
from math import prod

from swapmoe import model_pack as pack
from swapmoe.errors import UsageError
from swapmoe.model_vocab import MIN_VOCAB


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a model; equal specs give equal bytes.

    `type` is the block format of the expert tensors, `dense_type` of attention and shared experts
    ("" = the same), `embd_type` of token embeddings and output. `locality` in [0, 1) is the share
    of a token embedding that all tokens have in common (the cosine of two embeddings). With 128
    experts, 8 used and room for 27 %, LRU hits 0.27 of the routed experts at locality 0 (uniform),
    0.54 at 0.25, 0.70 at 0.5 and 0.93 at 0.7 (first layer, random tokens).
    """

    arch: str = "qwen2moe"
    layers: int = 2
    embd: int = 64
    experts: int = 4
    used: int = 2
    ffn: int = 64
    shared_ffn: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab: int = 512
    ctx: int = 2048
    type: str = "Q4_0"
    dense_type: str = ""
    embd_type: str = "F16"
    locality: float = 0.0
    seed: int = 1

    @property
    def slices(self) -> int:
        """Routed expert slices: one for each of gate, up and down, expert and layer."""
        routed = [row for row in ARCHITECTURES[self.arch] if row.role in ("expert", "expert-out")]
        return len(routed) * self.experts * self.layers

    @property
    def slice_bytes(self) -> int:
        """Bytes of one slice; gate, up and down slices are of one size."""
        return pack.row_bytes(self.type, self.embd * self.ffn)

    @property
    def digest(self) -> str:
        """A short name for exactly this model."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


PRESETS = {
    "tiny": ModelSpec(),
    "tiny-qwen3moe": ModelSpec(arch="qwen3moe", experts=8),
    "tiny-dense": ModelSpec(arch="qwen3"),
    "qwen3-30b-layers": ModelSpec(
        arch="qwen3moe",
        layers=24,
        embd=2048,
        experts=128,
        used=8,
        ffn=768,
        heads=16,
        kv_heads=4,
        head_dim=128,
        vocab=32000,
        ctx=32768,
    ),
}


SIZES = (
    "layers",
    "embd",
    "experts",
    "used",
    "ffn",
    "shared_ffn",
    "heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "ctx",
)


@dataclass(frozen=True)
class _Row:
    """A tensor of an architecture: GGUF name, role, and the spec sizes it has, slowest first."""

    name: str
    role: str
    dims: tuple[str, ...]


_ATTENTION = (
    _Row("attn_norm", "ones", ("embd",)),
    _Row("attn_q", "dense-sharp", ("q", "embd")),
    _Row("attn_k", "dense-sharp", ("kv", "embd")),
    _Row("attn_v", "dense", ("kv", "embd")),
    _Row("attn_output", "dense-out", ("embd", "q")),
)
_QK_NORMS = (
    _Row("attn_q_norm", "sharp", ("head_dim",)),
    _Row("attn_k_norm", "sharp", ("head_dim",)),
)
_EXPERTS = (
    _Row("ffn_norm", "ones", ("embd",)),
    _Row("ffn_gate_inp", "router", ("experts", "embd")),
    _Row("ffn_gate_exps", "expert", ("experts", "ffn", "embd")),
    _Row("ffn_up_exps", "expert", ("experts", "ffn", "embd")),
    _Row("ffn_down_exps", "expert-out", ("experts", "embd", "ffn")),
)
_DENSE_FFN = (
    _Row("ffn_norm", "ones", ("embd",)),
    _Row("ffn_gate", "dense", ("ffn", "embd")),
    _Row("ffn_up", "dense", ("ffn", "embd")),
    _Row("ffn_down", "dense-out", ("embd", "ffn")),
)
_SHARED_EXPERT = (
    _Row("ffn_gate_inp_shexp", "router", ("embd",)),
    _Row("ffn_gate_shexp", "dense", ("shared_ffn", "embd")),
    _Row("ffn_up_shexp", "dense", ("shared_ffn", "embd")),
    _Row("ffn_down_shexp", "dense-out", ("embd", "shared_ffn")),
)
ARCHITECTURES = {
    "qwen2moe": _ATTENTION + _EXPERTS + _SHARED_EXPERT,
    "qwen3moe": _ATTENTION + _QK_NORMS + _EXPERTS,
    "qwen3": _ATTENTION + _QK_NORMS + _DENSE_FFN,
}
# These take the head size from embd / heads instead of reading it.
_SQUARE_ATTENTION = frozenset({"qwen2moe"})


@dataclass(frozen=True)
class Tensor:
    """A tensor of a model: `shape` is slowest dimension first, `std` the spread of its values."""

    name: str
    role: str
    shape: tuple[int, ...]
    type: str
    std: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes in the file, without padding."""
        return pack.row_bytes(self.type, prod(self.shape))


def tensors(spec: ModelSpec) -> list[Tensor]:
    """Return the tensors of a valid spec in file order."""
    sizes = asdict(spec) | {"q": spec.heads * spec.head_dim, "kv": spec.kv_heads * spec.head_dim}
    types = {
        "expert": spec.type,
        "dense": spec.dense_type or spec.type,
        "embedding": spec.embd_type,
        "output": spec.embd_type,
    }
    # Damped, so that all layers together add about as much as a token's own part of embedding.
    damping = 4 * ((1 - spec.locality) / (2 * spec.layers)) ** 0.5
    # Sharp attention ties the output to what came before, so greedy decoding repeats itself later.
    gains = {
        "dense-out": damping,
        "expert-out": damping,
        "dense-sharp": 2.0,
        "router": 2.0,
        "output": 2.0,
    }

    def tensor(name: str, row: _Row) -> Tensor:
        shape = tuple(sizes[dim] for dim in row.dims)
        std = gains.get(row.role, 1.0) / shape[-1] ** 0.5
        return Tensor(name, row.role, shape, types.get(row.role.split("-")[0], "F32"), std)

    layers = [
        tensor(f"blk.{layer}.{row.name}.weight", row)
        for layer in range(spec.layers)
        for row in ARCHITECTURES[spec.arch]
    ]
    return [
        tensor("token_embd.weight", _Row("", "embedding", ("vocab", "embd"))),
        *layers,
        tensor("output_norm.weight", _Row("", "last-norm", ("embd",))),
        tensor("output.weight", _Row("", "output", ("vocab", "embd"))),
    ]


def check(spec: ModelSpec) -> None:
    """Raise UsageError, listing everything that is wrong with a spec."""
    problems: list[str] = []

    def need(condition: bool, text: str) -> None:
        if not condition:
            problems.append(text)

    need(spec.arch in ARCHITECTURES, f"arch {spec.arch} is not one of {', '.join(ARCHITECTURES)}")
    for name in ("type", "dense_type"):
        value = getattr(spec, name) or spec.type
        need(
            value in pack.TENSOR_TYPES,
            f"{name} {value} is not one of {', '.join(pack.TENSOR_TYPES)}",
        )
    embd_types = ", ".join(pack.ROW_TYPES)
    need(spec.embd_type in pack.ROW_TYPES, f"embd_type {spec.embd_type} is not one of {embd_types}")
    for name in SIZES:
        need(getattr(spec, name) > 0, f"{name} must be positive, not {getattr(spec, name)}")
    need(0 <= spec.locality < 1, f"locality must be in [0, 1), not {spec.locality}")
    need(spec.used <= spec.experts, f"used ({spec.used}) is more than experts ({spec.experts})")
    need(spec.vocab >= MIN_VOCAB, f"vocab ({spec.vocab}) is less than {MIN_VOCAB}")
    need(spec.embd % 4 == 0, f"embd ({spec.embd}) is not a multiple of 4")
    need(spec.head_dim % 2 == 0, f"head_dim ({spec.head_dim}) is odd")
    if spec.kv_heads > 0:
        need(
            spec.heads % spec.kv_heads == 0,
            f"heads ({spec.heads}) is not a multiple of kv_heads ({spec.kv_heads})",
        )
    if spec.arch in _SQUARE_ATTENTION:
        square = spec.heads * spec.head_dim == spec.embd
        heads = f"{spec.heads} * {spec.head_dim}"
        need(square, f"{spec.arch} needs heads * head_dim = embd, not {heads} != {spec.embd}")
    if not problems:
        for tensor in tensors(spec):
            values, _ = pack.block_size(tensor.type)
            length = tensor.shape[-1]
            need(
                length % values == 0,
                f"{tensor.name}: row of {length} is not a multiple of {values} ({tensor.type})",
            )
    if problems:
        raise UsageError("this model shape does not work", evidence=problems[:8])


def total_bytes(spec: ModelSpec) -> int:
    """Return the bytes of all tensors of a spec. Raises UsageError."""
    check(spec)
    return sum(tensor.nbytes for tensor in tensors(spec))
