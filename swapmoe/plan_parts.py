"""The parts that a program's memory splits into; experts get what is left."""

from dataclasses import dataclass
from typing import Literal

from swapmoe import compute, kv, weights
from swapmoe.gguf_info import ModelFacts
from swapmoe.memory import Memory
from swapmoe.sizes import GIB, MIB

PROGRAM_BYTES = 32 * MIB
"""Measured: llama-server with a model of a few KB keeps 15 MiB besides its buffers, and has files
of 12 MiB."""
TOKEN_BYTES = 400
"""Assumed: what the tokenizer keeps of each token of the vocabulary."""
DIRECT_ABOVE = 1.25
"""The engine's rule (`choose_io`): experts larger than this many times what other weights leave of
the memory are read past the page cache (direct)."""
LEAST_RESERVE, DIRECT_SHARE = 256 * MIB, 1 / 16
"""What `direct` leaves of the memory that is available when its arena is made (`open_arena`)."""
RESERVE_SHARE = 0.05
"""With `mmap`, at least the same: other files' page cache, requests, what the estimates miss."""
SYSTEM_SHARE, MOST_SYSTEM = 0.2, 2 * GIB
"""Assumed for `--ram`: what the operating system and other programs of that machine take."""
PROMPT_CACHE_SHARE, MOST_PROMPT_CACHE, LEAST_PROMPT_CACHE = 0.05, 512 * MIB, 64 * MIB
"""Of what is left for experts: saved prompts of a server with one slot; below the least, none."""
CHECKPOINTS, CHECKPOINT_SHARE = 2, 0.05
"""Enough to go back one turn, if they take no more than this share of what is left."""

FREE, RESERVE = "left over", "reserve"
PROMPT_CACHE, CHECKPOINT = "prompt cache of a server", "context checkpoints"

Io = Literal["direct", "mmap"]


@dataclass(frozen=True)
class Part:
    """A part of the memory; `certain` = known from the header, else estimated or chosen."""

    name: str
    nbytes: int
    certain: bool

    @property
    def is_used(self) -> bool:
        """Whether it is in use while a program decodes and keeps nothing else."""
        return not self.name.startswith((FREE, RESERVE, PROMPT_CACHE, CHECKPOINT))


@dataclass(frozen=True)
class Shares:
    """A split of the usable memory: what must be there, what may be less, and the experts' rest."""

    usable: int
    source: str
    engine: Io
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
        ends = (Part("routed experts", held, certain=False), Part(FREE, free, certain=False))
        return (*self.needed, *self.optional, *(part for part in ends if part.nbytes))

    @property
    def reserve(self) -> int:
        """What is left alone; the page cache takes it until someone else does."""
        return sum(part.nbytes for part in self.optional if part.name == RESERVE)

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
    io: Io = "direct" if size.routed > DIRECT_ABOVE * max(0, usable - _mapped(size)) else "mmap"
    if io == "direct":  # the buffers are allocated then, but not in use yet
        kept = LEAST_RESERVE + int(DIRECT_SHARE * max(0, usable - kv_bytes - program)) - working
    else:
        kept = max(LEAST_RESERVE, int(RESERVE_SHARE * usable))
    kept = min(max(0, left), max(0, kept))
    lookup = min(size.lookup, max(0, left - kept))
    left -= lookup
    prompt_cache = _whole_mib(min(MOST_PROMPT_CACHE, int(PROMPT_CACHE_SHARE * max(0, left - kept))))
    prompt_cache = prompt_cache if prompt_cache >= LEAST_PROMPT_CACHE else 0
    each = context.checkpoint_bytes(kv_type) if context.checkpoints else 0
    checkpoints = CHECKPOINTS
    while checkpoints and checkpoints * each > CHECKPOINT_SHARE * max(0, left - kept):
        checkpoints -= 1
    server = prompt_cache + checkpoints * each
    reserve = max(0, kept - server) if io == "direct" else kept
    left -= reserve + server
    optional = (
        Part("token embeddings (read by row)", lookup, certain=True),
        Part(PROMPT_CACHE, prompt_cache, certain=False),
        Part(f"{CHECKPOINT}: {checkpoints}", checkpoints * each, certain=False),
        Part(RESERVE, reserve, certain=False),
    )
    return Shares(
        usable=usable,
        source=source,
        engine=io,
        ctx=ctx,
        ubatch=ubatch,
        kv_type=kv_type,
        kv_bytes=kv_bytes,
        prompt_cache=prompt_cache,
        checkpoints=checkpoints,
        checkpoint_bytes=each,
        needed=needed,
        optional=tuple(part for part in optional if part.nbytes),
        experts=left,
    )


def _mapped(size: weights.Split) -> int:
    """Bytes of the loaded weights that are no routed experts."""
    return size.dense + size.lookup


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
