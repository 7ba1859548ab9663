"""What a model's bytes are for: routed experts, shared ones, embeddings, and all other weights."""

import math
import re
from collections import Counter
from dataclasses import dataclass

from swapmoe.gguf_header import Tensor
from swapmoe.gguf_info import ROUTED, ModelFacts

ROUTED_GROUP = "routed experts"
AHEAD = "prediction layers"
SHARED = "shared experts"
EMBEDDINGS = "token embeddings"
OUTPUT = "output"
ATTENTION = "attention"
OTHER = "other dense"
GROUPS = (ROUTED_GROUP, SHARED, ATTENTION, OTHER, EMBEDDINGS, OUTPUT, AHEAD)

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_SHARED = re.compile(r"ffn_\w+_(shexp|chexps)\.|ffn_gate_inp_shexp\.")
_EMBEDDINGS = ("token_embd.", "per_layer_token_embd.", "token_types.", "position_embd.")
_ATTENTION = ("attn", "ssm_", "shortconv", "indexer", "time_mix")


@dataclass(frozen=True)
class Group:
    """Tensors of one purpose; `types` maps a type to the bytes that have it."""

    name: str
    tensors: int
    nbytes: int
    types: dict[str, int]


def group_of(tensor: Tensor, trunk_layers: int) -> str:
    """The purpose of a tensor. Layers after the trunk predict further tokens."""
    match = _LAYER.fullmatch(tensor.name)
    if match is None:
        if tensor.name.startswith(_EMBEDDINGS):
            return EMBEDDINGS
        return OUTPUT if tensor.name.startswith("output.") else OTHER
    layer, name = int(match[1]), match[2]
    if layer >= trunk_layers > 0:
        return AHEAD
    if ROUTED.fullmatch(tensor.name):
        return ROUTED_GROUP
    if _SHARED.match(name):
        return SHARED
    return ATTENTION if name.startswith(_ATTENTION) else OTHER


def groups(facts: ModelFacts) -> list[Group]:
    """All groups that have tensors, in a fixed order."""
    found: dict[str, list[Tensor]] = {name: [] for name in GROUPS}
    for tensor in facts.tensors:
        found[group_of(tensor, facts.trunk_layers)].append(tensor)
    made = []
    for name, tensors in found.items():
        types: Counter[str] = Counter()
        for tensor in tensors:
            types[tensor.type_name] += tensor.nbytes
        if tensors:
            ordered = dict(types.most_common())
            made.append(Group(name, len(tensors), sum(t.nbytes for t in tensors), ordered))
    return made


@dataclass(frozen=True)
class Split:
    """Bytes by how they are used.

    `routed` may stay on disk; `dense` is read for each token; `lookup` are embeddings of which a
    token needs one row; `unused` is left out unless llama.cpp speculates with it.
    """

    routed: int
    dense: int
    lookup: int
    unused: int


def split(facts: ModelFacts) -> Split:
    """How a model's bytes are used. Embeddings that are the output, too, count as dense."""
    sizes = {group.name: group.nbytes for group in groups(facts)}
    dense = sum(sizes.get(name, 0) for name in (SHARED, ATTENTION, OTHER, OUTPUT))
    lookup = sizes.get(EMBEDDINGS, 0)
    if OUTPUT not in sizes:
        dense, lookup = dense + lookup, 0
    return Split(sizes.get(ROUTED_GROUP, 0), dense, lookup, sizes.get(AHEAD, 0))


def demand(facts: ModelFacts) -> int:
    """Bytes of routed experts that one token needs: none of them in memory yet."""
    return sum(
        facts.expert_used_count * tensor.slice_bytes
        for tensor in facts.routed
        if tensor.layer < facts.trunk_layers or not facts.trunk_layers
    )


def least_budget(facts: ModelFacts) -> int:
    """Bytes below which nothing can be computed: the experts one token needs of one layer."""
    by_layer: dict[int, int] = {}
    for tensor in facts.routed:
        need = facts.expert_used_count * tensor.slice_bytes
        by_layer[tensor.layer] = by_layer.get(tensor.layer, 0) + need
    return max(by_layer.values(), default=0)


def used_parameters(facts: ModelFacts) -> int:
    """Weights that one token is multiplied with: dense ones, the output, and its experts'."""
    tied = not any(tensor.name.startswith("output.") for tensor in facts.tensors)
    left_out = {AHEAD} if tied else {AHEAD, EMBEDDINGS}
    total = 0
    for tensor in facts.tensors:
        group = group_of(tensor, facts.trunk_layers)
        if group not in left_out:
            count = math.prod(tensor.dims)
            if group == ROUTED_GROUP:
                count = count * facts.expert_used_count // max(1, tensor.dims[-1])
            total += count
    return total
