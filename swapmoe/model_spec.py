"""Shapes of generated models: the spec, presets, and the tensor tables of the architectures."""

import hashlib
import json
from dataclasses import asdict, dataclass
from math import prod

from swapmoe import model_pack as pack
from swapmoe.errors import UsageError
from swapmoe.model_archs import ARCHITECTURES
from swapmoe.model_rows import Architecture, Row
from swapmoe.model_vocab import MIN_VOCAB


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a model; equal specs give equal bytes.

    `type` is the block format of the expert tensors, `down_type` of those of down ("" = the same),
    `dense_type` of attention and shared experts ("" = `type`), `embd_type` of token embeddings and
    output. `locality` in [0, 1) is the share
    of a token embedding that all tokens have in common (the cosine of two embeddings). With 128
    experts, 8 used and room for 27 %, LRU hits 0.27 of the routed experts at locality 0 (uniform),
    0.54 at 0.25, 0.70 at 0.5 and 0.93 at 0.7 (first layer, random tokens).

    Of the layers, the first `dense_layers` have no experts and the first `hash_layers` choose them
    by token id; `mtp_layers` come on top of `layers` and predict further tokens.
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
    dense_layers: int = 0
    hash_layers: int = 0
    mtp_layers: int = 0
    down_type: str = ""

    @property
    def slices(self) -> int:
        """Routed expert slices: one per expert of each tensor of gate, up, down, or gate and up."""
        return sum(tensor.shape[0] for tensor in tensors(self) if tensor.is_routed)

    @property
    def slice_bytes(self) -> int:
        """Bytes of one slice of gate or up; one of gate and up together has twice as many."""
        return pack.row_bytes(self.type, self.embd * self.ffn)

    @property
    def shape(self) -> dict[str, object]:
        """The fields that say something; later ones are left out while they are empty."""
        return {k: v for k, v in asdict(self).items() if v or k not in (*LAYER_KINDS, "down_type")}

    @property
    def digest(self) -> str:
        """A short name for exactly this model."""
        text = json.dumps(self.shape, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


LAYER_KINDS = ("dense_layers", "hash_layers", "mtp_layers")
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

    @property
    def is_routed(self) -> bool:
        """Whether this tensor holds the routed experts of a layer."""
        return self.role in ("expert", "expert-out")


def tensors(spec: ModelSpec) -> list[Tensor]:
    """Return the tensors of a valid spec in file order."""
    arch = ARCHITECTURES[spec.arch]
    sizes = asdict(spec) | {"q": spec.heads * spec.head_dim, "kv": spec.kv_heads * spec.head_dim}
    sizes |= arch.sizes(spec)
    types = {
        "expert": spec.type,
        "expert-out": spec.down_type or spec.type,
        "dense": spec.dense_type or spec.type,
        "embedding": spec.embd_type,
        "output": spec.embd_type,
        "half": "F16",
        "ids": "I32",
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
    fixed = {"small": 0.01, "near-one": 0.1}

    def tensor(prefix: str, row: Row) -> Tensor:
        shape = tuple(sizes[dim] for dim in row.dims)
        std = fixed.get(row.role, gains.get(row.role, 1.0) / shape[-1] ** 0.5)
        kind = types.get(row.role) or types.get(row.role.split("-")[0], "F32")
        return Tensor(f"{prefix}{row.name}.{row.suffix}", row.role, shape, kind, std)

    layers = [
        tensor(f"blk.{layer}.", row)
        for layer in range(spec.layers + spec.mtp_layers)
        for row in arch.rows
        if row.when is None or row.when(spec, layer)
    ]
    return [
        tensor("", Row("token_embd", "embedding", ("vocab", "embd"))),
        *layers,
        *(tensor("", row) for row in arch.top),
        tensor("", Row("output_norm", "last-norm", ("embd",))),
        tensor("", Row("output", "output", ("vocab", "embd"))),
    ]


def check(spec: ModelSpec) -> None:
    """Raise UsageError, listing everything that is wrong with a spec."""
    problems: list[str] = []

    def need(condition: bool, text: str) -> None:
        if not condition:
            problems.append(text)

    need(spec.arch in ARCHITECTURES, f"arch {spec.arch} is not one of {', '.join(ARCHITECTURES)}")
    for name in ("type", "dense_type", "down_type"):
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
    if arch := ARCHITECTURES.get(spec.arch):
        problems += _misfits(spec, arch)
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


def _misfits(spec: ModelSpec, arch: Architecture) -> list[str]:
    """Say what an architecture does not allow in a spec."""
    found: list[str] = []
    if arch.square and spec.heads * spec.head_dim != spec.embd:
        heads = f"{spec.heads} * {spec.head_dim}"
        found.append(f"{spec.arch} needs heads * head_dim = embd, not {heads} != {spec.embd}")
    if arch.one_kv_head and spec.kv_heads != 1:
        found.append(f"{spec.arch} has one key/value head, not {spec.kv_heads}")
    if spec.layers < arch.least_layers:
        found.append(f"{spec.arch} needs at least {arch.least_layers} layers, not {spec.layers}")
    for name in LAYER_KINDS:
        count = getattr(spec, name)
        most = 1 if name == "mtp_layers" else spec.layers
        if count and name not in arch.layer_kinds:
            found.append(f"{spec.arch} has no {name}")
        elif not 0 <= count <= most:
            found.append(f"{name} ({count}) is not between 0 and {most}")
    return found


def total_bytes(spec: ModelSpec) -> int:
    """Return the bytes of all tensors of a spec. Raises UsageError."""
    check(spec)
    return sum(tensor.nbytes for tensor in tensors(spec))
