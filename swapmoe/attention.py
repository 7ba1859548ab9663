"""Which layers of an architecture keep what of past tokens, as llama.cpp's loader decides it.

Read from `src/models/*.cpp` and `llama_model::create_memory` at the pin: the keys' defaults, the
order of full and sliding layers, and which layers are recurrent.
"""

from dataclasses import dataclass

from swapmoe.gguf_info import ModelFacts

WITHOUT_CACHE = {"llada-moe", "rnd1"}
"""Diffusion models: every pass sees the whole text."""
WITHOUT_FLASH = {"grok"}
"""llama.cpp turns flash attention off for these."""
RECURRENT_BY_KV_HEADS = {"jamba", "granitehybrid", "lfm2", "lfm2moe", "plamo2"}
RECURRENT_BY_KV_HEADS |= {"kimi-linear", "kimi-k3", "bailingmoe3"}
"""Hybrids in which a layer without key/value heads is recurrent."""
RECURRENT_BY_INTERVAL = {"qwen3next", "qwen35", "qwen35moe"}
"""Hybrids with one layer of full attention in each `full_attention_interval`."""
NEMOTRON = {"nemotron_h", "nemotron_h_moe"}
"""Hybrids whose layers are one of attention, recurrence or feed-forward."""
TRUNK_ONLY = {"step35", "hy_v3", "glm-dsa", "mimo2", "qwen35", "qwen35moe"}
"""Architectures that keep nothing for the layers that predict further tokens."""
INDEXED = {"deepseek32", "glm-dsa"}
"""A second cache, of the indexer's keys."""
NEWER = {"dots3note", "glm5-next", "hy_v4", "minimax-01", "qwen4exp"}
"""In b11434, not yet in b10235, with caches that no rule here is about."""


@dataclass(frozen=True)
class Window:
    """How an architecture slides: one full layer in `period` (0 = none), first or last of them.

    `fixed` is the window when it is not what the header says; `always` = without a key, too.
    """

    period: int
    full_first: bool = False
    fixed: int = 0
    always: bool = False


WINDOWS = {
    "afmoe": Window(4),
    "cohere2moe": Window(4, full_first=True),
    "exaone-moe": Window(4),
    "gemma4": Window(0),
    "gpt-oss": Window(2),
    "laguna": Window(4, full_first=True),
    "llama4": Window(4, fixed=8192, always=True),
    "maple": Window(0),
    "mellum": Window(4),
    "mimo2": Window(0),
    "smallthinker": Window(4, full_first=True, fixed=4096),
    "step35": Window(0),
}


def window(facts: ModelFacts) -> int:
    """Tokens that a sliding layer looks back on; 0 = no layer slides."""
    rule = WINDOWS.get(facts.architecture)
    if rule is None:
        return facts.integer("attention.sliding_window") if is_compressed(facts) else 0
    key = "attention.sliding_window"
    stated = facts.integer(key, -1)
    if stated == 0 or (stated < 0 and not rule.always):
        return 0
    return rule.fixed or stated


def is_compressed(facts: ModelFacts) -> bool:
    """Whether this is DeepSeek-V4's attention: a window, and compressed keys before it."""
    return facts.architecture == "deepseek4"


def layer_count(facts: ModelFacts) -> int:
    """Layers that the main context keeps a cache for."""
    return facts.trunk_layers if facts.architecture in TRUNK_ONLY else facts.block_count


def sliding_layers(facts: ModelFacts) -> frozenset[int]:
    """Layers that look back on a window only."""
    rule = WINDOWS.get(facts.architecture)
    if rule is None or not window(facts):
        return frozenset()
    layers = range(facts.block_count)
    pattern = facts.array("attention.sliding_window_pattern")
    if pattern:
        return frozenset(layer for layer in layers if layer < len(pattern) and pattern[layer])
    period = facts.integer("attention.sliding_window_pattern", rule.period)
    if rule.period == 0:
        return frozenset(layers) if period else frozenset()
    if period == 0:
        return frozenset(layers)
    full = 0 if rule.full_first else period - 1
    return frozenset(layer for layer in layers if layer % period != full)


def per_layer(facts: ModelFacts, name: str, default: int = 0) -> tuple[int, ...]:
    """A key that is one number or one for each layer, as one for each layer."""
    values = facts.array(name)
    if not values:
        values = (facts.integer(name, default),) * facts.block_count
    return (values + (0,) * facts.block_count)[: facts.block_count]


def kv_heads(facts: ModelFacts) -> tuple[int, ...]:
    """Key/value heads of each layer; as many as heads when the header does not say."""
    name = "attention.head_count_kv"
    if facts.array(name) or facts.integer(name, -1) >= 0:
        return per_layer(facts, name)
    return per_layer(facts, "attention.head_count")


def recurrent_layers(facts: ModelFacts) -> frozenset[int]:
    """Layers that keep a state of fixed size instead of keys and values."""
    arch, layers = facts.architecture, range(facts.block_count)
    heads = kv_heads(facts)
    if arch in RECURRENT_BY_KV_HEADS:
        return frozenset(layer for layer in layers if heads[layer] == 0)
    if arch in NEMOTRON:
        ffn = per_layer(facts, "feed_forward_length")
        return frozenset(layer for layer in layers if heads[layer] == 0 and ffn[layer] == 0)
    if arch in RECURRENT_BY_INTERVAL:
        flags = facts.array("attention.recurrent_layers")
        if flags:
            return frozenset(layer for layer in layers if layer < len(flags) and flags[layer])
        interval = facts.integer("full_attention_interval", 4) or 1
        trunk = facts.trunk_layers
        return frozenset(layer for layer in layers if layer < trunk and (layer + 1) % interval)
    return frozenset()


def attention_layers(facts: ModelFacts) -> list[int]:
    """Layers that keep keys (and values) of past tokens."""
    if facts.architecture in WITHOUT_CACHE:
        return []
    recurrent = recurrent_layers(facts)
    layers = [layer for layer in range(layer_count(facts)) if layer not in recurrent]
    if facts.architecture in NEMOTRON:
        ffn = per_layer(facts, "feed_forward_length")
        layers = [layer for layer in layers if ffn[layer] == 0]
    if facts.architecture == "gemma4":
        shared = facts.integer("attention.shared_kv_layers")
        layers = [layer for layer in layers if layer < facts.block_count - shared]
    return layers
