"""Bytes that llama.cpp keeps of past tokens: keys, values, recurrent states. From the header alone.

The rules are those of `llama_kv_cache`, `llama_kv_cache_iswa`, `llama_kv_cache_dsa`,
`llama_kv_cache_dsv4` and `llama_memory_recurrent` at the pin, with flash attention on (the CPU's
default): tests compare the sums with the sizes that the programs print, to the printed digit.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from swapmoe import attention
from swapmoe.gguf_header import block_length, row_bytes
from swapmoe.gguf_info import ModelFacts

TYPES = ("f16", "q8_0", "q4_0")
"""Types of the cache that can be planned with, largest first."""
DEFAULT_CONTEXT = 4096
CELLS = 256
"""Contexts and windows are rounded up to this many tokens."""
CSA_RATIO, HCA_RATIO = 4, 128
"""DeepSeek-V4: tokens per compressed key in the two kinds of layers that compress."""


@dataclass(frozen=True)
class Part:
    """One cache: the row lengths (elements) of its layers, for each cell.

    It has a cell for each token of the context, or of a `window`, or for each `ratio` tokens.
    `type` is fixed when given, else the user's choice.
    """

    name: str
    rows: tuple[int, ...]
    window: int = 0
    ratio: int = 1
    type: str = ""

    def cells(self, ctx: int, ubatch: int) -> int:
        """Cells for one sequence."""
        if self.window:
            return _pad(min(ctx, self.window + ubatch))
        return _pad(max(1, -(-ctx // self.ratio))) if self.ratio > 1 else ctx

    def cell_bytes(self, kv_type: str) -> int:
        """Bytes of one cell in all layers."""
        return sum(row_bytes(self.type or kv_type, row) for row in self.rows)


@dataclass(frozen=True)
class Memory:
    """All that a context keeps; `state_bytes` for each sequence, whatever its length.

    `heads` are the lengths of single keys and values, which a type's blocks must divide. `assumed`
    says what the header does not tell; empty when the sizes are exact.
    """

    parts: tuple[Part, ...]
    state_bytes: int
    latent: bool
    heads: tuple[int, ...] = ()
    assumed: str = ""

    def nbytes(self, ctx: int, ubatch: int, kv_type: str = "f16") -> int:
        """Bytes for one sequence of `ctx` tokens (0 or less is not allowed)."""
        ctx = _pad(ctx)
        ubatch = min(ubatch, ctx)
        caches = sum(part.cells(ctx, ubatch) * part.cell_bytes(kv_type) for part in self.parts)
        return caches + self.state_bytes

    def per_token(self, kv_type: str = "f16") -> int:
        """Bytes that each further token of context takes; windows are full already."""
        return sum(part.cell_bytes(kv_type) // part.ratio for part in self.parts if not part.window)

    def window_bytes(self, ubatch: int, kv_type: str = "f16") -> int:
        """Bytes of sliding caches once the window is full."""
        return sum(
            _pad(part.window + ubatch) * part.cell_bytes(kv_type)
            for part in self.parts
            if part.window
        )

    @property
    def window(self) -> int:
        """Tokens of the sliding window; 0 = none."""
        return max((part.window for part in self.parts), default=0)

    @property
    def checkpoints(self) -> bool:
        """Whether the server keeps checkpoints: only of what cannot be cut back to a prefix."""
        return bool(self.window or self.state_bytes)

    def checkpoint_bytes(self, kv_type: str = "f16") -> int:
        """Bytes of one checkpoint: states, and the sliding caches' tokens."""
        sliding = sum(part.window * part.cell_bytes(kv_type) for part in self.parts if part.window)
        return sliding + self.state_bytes

    def fits_type(self, kv_type: str) -> bool:
        """Whether the programs take this cache type: a head has to be whole blocks of it."""
        return kv_type == "f16" or all(length % block_length(kv_type) == 0 for length in self.heads)


def _pad(cells: int) -> int:
    return -(-cells // CELLS) * CELLS


def memory(facts: ModelFacts) -> Memory:
    """What a context of this model keeps."""
    if facts.architecture in attention.WITHOUT_CACHE:
        return Memory((), 0, latent=False)
    if attention.is_compressed(facts):
        return _compressed(facts)
    heads = attention.kv_heads(facts)
    layers = attention.attention_layers(facts)
    sliding = attention.sliding_layers(facts)
    latent = facts.integer("attention.key_length_mla") > 0
    full = [layer for layer in layers if layer not in sliding]
    narrow = [layer for layer in layers if layer in sliding]
    window = attention.window(facts)
    parts = [
        Part("latent" if latent else "keys and values", _rows(facts, full, heads, latent)),
        Part("sliding window", _rows(facts, narrow, heads, latent, "_swa"), window),
        *_indexer(facts, layers),
    ]
    return Memory(
        parts=tuple(part for part in parts if any(part.rows)),
        state_bytes=_state_bytes(facts),
        latent=latent,
        heads=_heads(facts, bool(narrow)),
        assumed=_assumed(facts),
    )


def _assumed(facts: ModelFacts) -> str:
    if facts.architecture in attention.NEWER:
        return (
            f"what {facts.architecture} keeps of past tokens is newer than the rules used here; "
            "all layers are counted with full keys and values"
        )
    unused = facts.integer("attention.sliding_window")
    if unused and facts.architecture not in attention.WINDOWS:
        return (
            f"the header names a sliding window of {unused:,} tokens that llama.cpp is not known "
            "to use for this architecture; all layers are counted in full"
        )
    return ""


def _heads(facts: ModelFacts, slides: bool) -> tuple[int, ...]:
    if facts.architecture in attention.WITHOUT_FLASH:
        return (1,)  # quantised values need flash attention
    kinds = ("", "_swa") if slides else ("",)
    return tuple(_head_length(facts, kind, end) for kind in ("key", "value") for end in kinds)


def _rows(
    facts: ModelFacts, layers: Iterable[int], heads: tuple[int, ...], latent: bool, suffix: str = ""
) -> tuple[int, ...]:
    """Row lengths of keys, then of values unless they are in the latent keys."""
    key, value = _head_length(facts, "key", suffix), _head_length(facts, "value", suffix)
    return tuple(
        heads[layer] * length for layer in layers for length in ((key,) if latent else (key, value))
    )


def _head_length(facts: ModelFacts, kind: str, suffix: str = "") -> int:
    heads = attention.per_layer(facts, "attention.head_count")
    if not heads or heads[0] <= 0:
        return 0
    default = facts.integer("embedding_length") // heads[0]
    full = facts.integer(f"attention.{kind}_length", default)
    return facts.integer(f"attention.{kind}_length{suffix}", full)


def _indexer(facts: ModelFacts, layers: list[int]) -> list[Part]:
    length = facts.integer("attention.indexer.key_length")
    if facts.architecture in attention.INDEXED:
        return [Part("indexer", (length,) * len(layers))]
    if facts.architecture == "minimax-m3":
        lead = facts.integer("leading_dense_block_count")
        return [Part("indexer", tuple(length for at in layers if at >= lead), type="f32")]
    return []


def _state_bytes(facts: ModelFacts) -> int:
    """Recurrent states of one sequence: `n_embd_r` and `n_embd_s` floats in each such layer."""
    count = len(attention.recurrent_layers(facts))
    if not count:
        return 0
    conv = facts.integer("ssm.conv_kernel")
    if short := facts.integer("shortconv.l_cache"):
        values = facts.integer("embedding_length") * (short - 1)
    elif kda := facts.integer("kda.head_dim"):
        heads = attention.per_layer(facts, "attention.head_count")[0]
        values = 3 * (conv - 1 if conv > 0 else 3) * heads * kda + kda * kda * heads
    else:
        inner, state = facts.integer("ssm.inner_size"), facts.integer("ssm.state_size")
        values = max(0, conv - 1) * (inner + 2 * facts.integer("ssm.group_count") * state)
        values += inner * state
    return count * 4 * values


def _compressed(facts: ModelFacts) -> Memory:
    """DeepSeek-V4: a window of latent keys in each layer, and compressed keys before it."""
    key = _head_length(facts, "key") * max(1, facts.integer("attention.head_count_kv", 1))
    index = facts.integer("attention.indexer.key_length")
    ratios = attention.per_layer(facts, "attention.compress_ratios")
    four = sum(ratio == CSA_RATIO for ratio in ratios)
    many = sum(ratio == HCA_RATIO for ratio in ratios)
    parts = (
        Part("sliding window", (key,) * facts.block_count, attention.window(facts)),
        Part("compressed", (key,) * four, ratio=CSA_RATIO),
        Part("compressed further", (key,) * many, ratio=HCA_RATIO),
        Part("indexer", (index,) * four, ratio=CSA_RATIO),
    )
    # Two tensors of floats for each layer: a half-filled group's keys, and their weights.
    states = four * 2 * CSA_RATIO * 2 * (key + index) + many * HCA_RATIO * key
    return Memory(
        parts=tuple(part for part in parts if any(part.rows)),
        state_bytes=2 * 4 * states,
        latent=True,
        heads=(key, index),
    )
