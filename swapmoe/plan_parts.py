"""The parts that a program's memory splits into; experts get what is left."""

from dataclasses import dataclass

from swapmoe import compute, kv, weights
from swapmoe.gguf_info import ModelFacts
from swapmoe.memory import Memory
from swapmoe.sizes import GIB, MIB

PROGRAM_BYTES = 32 * MIB
"""Measured: llama-server with a model of a few KB keeps 15 MiB besides its buffers, and has files
of 12 MiB."""
TOKEN_BYTES = 400
"""Assumed: what the tokenizer keeps of each token of the vocabulary."""
RESERVE_SHARE, LEAST_RESERVE = 0.05, 256 * MIB
"""Left alone: other files' page cache, allocations of requests, what the estimates miss."""
SYSTEM_SHARE, MOST_SYSTEM = 0.2, 2 * GIB
"""Assumed for `--ram`: what the operating system and other programs of that machine take."""
PROMPT_CACHE_SHARE, MOST_PROMPT_CACHE, LEAST_PROMPT_CACHE = 0.05, 512 * MIB, 64 * MIB
"""Of what is left for experts: saved prompts of a server with one slot; below the least, none."""
CHECKPOINTS, CHECKPOINT_SHARE = 2, 0.05
"""Enough to go back one turn, if they take no more than this share of what is left."""


@dataclass(frozen=True)
class Part:
    """A part of the memory; `certain` = known from the header, else estimated or chosen."""

    name: str
    nbytes: int
    certain: bool


@dataclass(frozen=True)
class Shares:
    """A split of the usable memory: what must be there, what may be less, and the experts' rest."""

    usable: int
    source: str
    ctx: int
    ubatch: int
    kv_type: str
    kv_bytes: int
    prompt_cache: int
    checkpoints: int
    checkpoint_bytes: int
    needed: tuple[Part, ...]
    optional: tuple[Part, ...]
    experts: int

    def parts(self, routed: int) -> tuple[Part, ...]:
        """All parts; they add up to the usable memory unless it is too little."""
        held = min(routed, max(0, self.experts))
        free = max(0, self.experts - held)
        ends = (Part("routed experts", held, certain=False), Part("left over", free, certain=False))
        return (*self.needed, *self.optional, *(part for part in ends if part.nbytes))

    def impossible(self, least: int) -> list[str]:
        """Why it cannot work; empty when it can. `least` is the least budget for experts."""
        needed = sum(part.nbytes for part in self.needed)
        if needed + least <= self.usable:
            return []
        largest = sorted(self.needed, key=lambda part: -part.nbytes)[:3]
        least_of_all, usable = (needed + least) / MIB, self.usable / MIB
        return [
            f"{least_of_all:,.0f} MiB are needed, {usable:,.0f} MiB are usable ({self.source})",
            "the largest parts: "
            + ", ".join(f"{part.name} {part.nbytes / MIB:,.0f} MiB" for part in largest),
        ]


def split(
    facts: ModelFacts,
    context: kv.Memory,
    here: Memory,
    ram: int | None,
    limit: int | None,
    *,
    ctx: int,
    kv_type: str,
    ubatch: int,
) -> Shares:
    """Split the memory: what must be there, then what may be less, then experts."""
    usable, source = _usable(here, ram, limit)
    size = weights.split(facts)
    kv_bytes = context.nbytes(ctx, ubatch, kv_type)
    working = compute.buffer_bytes(facts, ctx, ubatch) + compute.scratch_bytes(facts, ubatch)
    program = PROGRAM_BYTES + TOKEN_BYTES * compute.vocabulary(facts)
    needed = (
        Part("dense weights", size.dense, certain=True),
        Part(f"context: {ctx:,} tokens, {kv_type}", kv_bytes, certain=not context.assumed),
        Part(f"compute buffers: micro-batch {ubatch:,}", working, certain=False),
        Part("program and vocabulary", program, certain=False),
    )
    left = usable - sum(part.nbytes for part in needed)
    reserve = min(max(0, left), max(LEAST_RESERVE, int(RESERVE_SHARE * usable)))
    lookup = min(size.lookup, max(0, left - reserve))
    left -= reserve + lookup
    prompt_cache = _whole_mib(min(MOST_PROMPT_CACHE, int(PROMPT_CACHE_SHARE * max(0, left))))
    prompt_cache = prompt_cache if prompt_cache >= LEAST_PROMPT_CACHE else 0
    each = context.checkpoint_bytes(kv_type) if context.checkpoints else 0
    checkpoints = CHECKPOINTS
    while checkpoints and checkpoints * each > CHECKPOINT_SHARE * max(0, left):
        checkpoints -= 1
    optional = (
        Part("token embeddings (read by row)", lookup, certain=True),
        Part("prompt cache of a server", prompt_cache, certain=False),
        Part(f"context checkpoints: {checkpoints}", checkpoints * each, certain=False),
        Part("reserve", reserve, certain=False),
    )
    return Shares(
        usable=usable,
        source=source,
        ctx=ctx,
        ubatch=ubatch,
        kv_type=kv_type,
        kv_bytes=kv_bytes,
        prompt_cache=prompt_cache,
        checkpoints=checkpoints,
        checkpoint_bytes=each,
        needed=needed,
        optional=tuple(part for part in optional if part.nbytes),
        experts=left - prompt_cache - checkpoints * each,
    )


def _usable(here: Memory, ram: int | None, limit: int | None) -> tuple[int, str]:
    usable, source = here.usable, here.source
    if ram is not None:
        system = min(MOST_SYSTEM, int(SYSTEM_SHARE * ram))
        usable = ram - system
        source = f"{ram / GIB:.1f} GiB less {system / GIB:.1f} for the system, assumed"
    if limit is not None and limit < usable:
        usable, source = limit, "the memory limit given"
    return usable, source


def _whole_mib(size: int) -> int:
    return size // MIB * MIB
