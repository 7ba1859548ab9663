"""What `swapmoe inspect` shows of a model: one description, as JSON and as lines for people."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from swapmoe import attention, kv, weights
from swapmoe.gguf_info import ModelFacts, require_streamable
from swapmoe.kv import Memory
from swapmoe.weights import Group, Split

UBATCH = 512
"""Sliding caches hold a micro-batch besides their window; this is the programs' default."""


@dataclass(frozen=True)
class Layers:
    """Layers by kind. `dense` ones have no routed experts, `dense_lead` of them come first.

    `routed` includes the `hashed` ones, which choose experts by token id.
    """

    total: int
    dense: int
    dense_lead: int
    routed: int
    hashed: int
    prediction: int
    attention: int
    sliding: int
    recurrent: int


@dataclass(frozen=True)
class Inspection:
    """Facts of one model, worked out from its header."""

    facts: ModelFacts
    groups: tuple[Group, ...]
    split: Split
    layers: Layers
    slice_sizes: dict[str, int]
    bytes_per_token: int
    expert_bytes: int
    memory: Memory


def inspect(facts: ModelFacts) -> Inspection:
    """Work out the facts. Raises `ModelError` for the old layout, one tensor for each expert."""
    if facts.old_layout:
        require_streamable(facts)
    demand = weights.demand(facts)
    trunk = [t for t in facts.routed if t.layer < facts.trunk_layers or not facts.trunk_layers]
    routed_layers = {tensor.layer for tensor in trunk}
    sizes = Counter({f"{t.type_name} {t.slice_bytes}": 0 for t in trunk})
    for tensor in trunk:
        sizes[f"{tensor.type_name} {tensor.slice_bytes}"] += tensor.slices
    chosen = len(routed_layers) * facts.expert_used_count
    return Inspection(
        facts=facts,
        groups=tuple(weights.groups(facts)),
        split=weights.split(facts),
        layers=_layers(facts, routed_layers),
        slice_sizes=dict(sizes),
        bytes_per_token=demand,
        expert_bytes=demand // chosen if chosen else 0,
        memory=kv.memory(facts),
    )


def _layers(facts: ModelFacts, routed: set[int]) -> Layers:
    tables = {t.name for t in facts.tensors if "ffn_gate_tid2eid." in t.name}
    kept = attention.attention_layers(facts)
    sliding = attention.sliding_layers(facts)
    if attention.is_compressed(facts):
        sliding = frozenset(kept)
    return Layers(
        total=facts.block_count,
        dense=max(0, facts.trunk_layers - len(routed)),
        dense_lead=min(routed, default=facts.trunk_layers),
        routed=len(routed),
        hashed=max(len(tables), min(facts.integer("hash_layer_count"), len(routed))),
        prediction=facts.nextn_layers,
        attention=len(kept),
        sliding=len(sliding & set(kept)),
        recurrent=len(attention.recurrent_layers(facts)),
    )


def to_json(found: Inspection) -> dict[str, object]:
    """The facts for machines; sizes in bytes."""
    facts, memory = found.facts, found.memory
    return {
        "path": str(facts.path),
        "shards": [str(shard) for shard in facts.shards],
        "header_only": bool(facts.missing_bytes),
        "missing_bytes": facts.missing_bytes,
        "architecture": facts.architecture,
        "name": facts.name,
        "file_bytes": facts.file_bytes,
        "tensors": len(facts.tensors),
        "tensor_bytes": facts.tensor_bytes,
        "bytes": {
            "routed": found.split.routed,
            "dense": found.split.dense,
            "lookup": found.split.lookup,
            "unused": found.split.unused,
        },
        "groups": {
            group.name: {"tensors": group.tensors, "bytes": group.nbytes, "types": group.types}
            for group in found.groups
        },
        "layers": vars(found.layers),
        "experts": {
            "count": facts.expert_count,
            "used": facts.expert_used_count,
            "slices": facts.slices_without_nextn,
            "slice_bytes": found.slice_sizes,
            "expert_bytes": found.expert_bytes,
            "bytes_per_token": found.bytes_per_token,
            "not_streamed": list(facts.expert_like),
        },
        "context": {
            "trained": facts.context_length,
            "latent": memory.latent,
            "window": memory.window,
            "state_bytes": memory.state_bytes,
            "bytes_per_token": {t: memory.per_token(t) for t in kv.TYPES if memory.fits_type(t)},
            "window_bytes": {
                t: memory.window_bytes(UBATCH, t) for t in kv.TYPES if memory.fits_type(t)
            },
            "assumed": memory.assumed,
        },
    }


def lines(found: Inspection) -> Iterator[str]:
    """The facts for people, at most 80 columns but for names."""
    facts, layers = found.facts, found.layers
    whole = facts.file_bytes + facts.missing_bytes
    yield f"{facts.path.name}: {facts.architecture or 'unknown architecture'}, {whole:,} bytes"
    if facts.name:
        yield f"  {facts.name}"
    files = f"{len(facts.shards)} file{'s' if len(facts.shards) > 1 else ''}"
    missing = f"the header only, {facts.missing_bytes:,} bytes of data are not here"
    yield f"files    {files}: {missing if facts.missing_bytes else 'whole'}"
    yield ""
    yield f"{'bytes':>17}  {'tensors':>7}  purpose"
    for group in found.groups:
        types = ", ".join(list(group.types)[:4]) + (" ..." if len(group.types) > 4 else "")
        yield f"{group.nbytes:>17,}  {group.tensors:>7,}  {group.name}: {types}"
    yield ""
    kinds = [
        (layers.dense, f"dense ({layers.dense_lead} of them first)"),
        (layers.routed, "routed"),
        (layers.hashed, "of them routed by token id"),
        (layers.prediction, "for prediction (not streamed)"),
    ]
    yield f"layers   {layers.total}: " + ", ".join(f"{n} {name}" for n, name in kinds if n)
    if found.facts.routed:
        yield f"experts  {facts.expert_count} in a layer, {facts.expert_used_count} used"
        yield f"slices   {facts.slices_without_nextn:,}: " + ", ".join(
            f"{count:,} of {size.split()[1]} ({size.split()[0]})"
            for size, count in sorted(found.slice_sizes.items(), key=lambda item: -item[1])[:4]
        )
        yield f"a token  {found.bytes_per_token:,} bytes of experts with nothing in memory"
        yield f"         {found.expert_bytes:,} bytes an expert"
    for name in facts.expert_like:
        yield f"note: {name} looks like experts and is not streamed"
    yield from _context_lines(found)


def _context_lines(found: Inspection) -> Iterator[str]:
    memory, layers = found.memory, found.layers
    kinds = [
        (layers.attention - layers.sliding, "latent" if memory.latent else "attention"),
        (layers.sliding, f"sliding over {memory.window:,} tokens"),
        (layers.recurrent, "recurrent"),
    ]
    yield "context  " + ", ".join(f"{count} {name}" for count, name in kinds if count)
    for kv_type in (t for t in kv.TYPES if memory.fits_type(t)):
        text = f"{memory.per_token(kv_type):,} bytes a token as {kv_type}"
        if memory.window:
            text += f", {memory.window_bytes(UBATCH, kv_type):,} for the windows"
        yield f"         {text}"
    if memory.state_bytes:
        yield f"         {memory.state_bytes:,} bytes of states for each sequence"
    if memory.assumed:
        yield f"note: {memory.assumed}"
