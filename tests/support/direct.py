"""Budgets for the direct engine, in the terms of its arena."""

from collections.abc import Callable

from swapmoe.gguf_info import ModelFacts, RoutedTensor

ALIGNMENT = 4096


def slot_bytes(tensor: RoutedTensor) -> int:
    """Return the size of a slot: a slice may begin anywhere in a block, and is read in blocks."""
    return -(-(tensor.slice_bytes + ALIGNMENT - 1) // ALIGNMENT) * ALIGNMENT


def arena_bytes(facts: ModelFacts) -> int:
    """Return the bytes of an arena that holds every slice."""
    return sum(tensor.slices * slot_bytes(tensor) for tensor in facts.routed)


def _one_layer(facts: ModelFacts) -> int:
    last = max(tensor.layer for tensor in facts.routed)
    return sum(t.slices * slot_bytes(t) for t in facts.routed if t.layer == last)


def _one_token(facts: ModelFacts) -> int:
    return sum(facts.expert_used_count * slot_bytes(tensor) for tensor in facts.routed)


def _few(facts: ModelFacts, count: int) -> int:
    sizes = {slot_bytes(tensor) for tensor in facts.routed}
    return count * max(sizes) if len(sizes) == 1 else max(count * max(sizes) // 2, sum(sizes))


BUDGETS: dict[str, Callable[[ModelFacts], int]] = {
    "all": arena_bytes,
    "half": lambda facts: arena_bytes(facts) // 2,
    "layer": _one_layer,
    "token": _one_token,
    "8 slices": lambda facts: _few(facts, 8),
}
"""From everything down to a few slices, in bytes."""
TIGHT = ("half", "token", "8 slices")
"""Where slices have to go before the end."""
