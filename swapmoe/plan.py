"""What of a model fits into memory, how it is best read, and how fast that will be.

Everything is worked out from the header, the machine and what was measured before; nothing is
loaded or started. The rules behind the numbers are in docs/planning.md.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from swapmoe import compute, history, kv, memory, plan_parts, sizes, speed, toolchain, weights
from swapmoe.errors import ModelError
from swapmoe.gguf_info import ModelFacts
from swapmoe.memory import Memory
from swapmoe.plan_parts import Io, Part, Shares
from swapmoe.speed import Machine, Speed

LEAST_CONTEXT = 512
UBATCHES = (2048, 1024, 512, 256, 128)
DEFAULT_UBATCH = 512
UBATCH_COST = 0.05
"""Share of the experts' budget that a larger micro-batch than llama.cpp's default may take."""
WELL_RATE = 2.0
"""Tokens per second that count as streaming well, whatever memory alone would give."""
WELL_SHARE, LEAST_WELL_RATE = 0.5, 1.0
"""So does this share of the speed with everything in memory, from this rate on."""

Verdict = Literal["fits", "streams well", "streams slowly", "cannot work"]


@dataclass(frozen=True)
class Options:
    """What is asked; None = choose. Sizes in bytes, `disk_rate` in bytes per second.

    `ram` plans for another machine with that much memory (and `cores`), `limit` for a program that
    may use no more than that.
    """

    ctx: int = kv.DEFAULT_CONTEXT
    ram: int | None = None
    limit: int | None = None
    disk_rate: float | None = None
    kv_type: str | None = None
    ubatch: int | None = None
    cores: int | None = None


@dataclass(frozen=True)
class Plan:
    """A plan; sizes in bytes.

    `parts` add up to `usable`. `budget` is what is left for routed experts, `floor` what one token
    needs of them, `cache_size` what to tell the engine (0 = let the page cache decide).
    `prompt_cache` and `checkpoints` (each of `checkpoint_bytes`) are for a server with one slot.
    `speed` is None when it cannot work. `reasons` say why the verdict is what it is, `notes` what
    else matters.
    """

    model: ModelFacts
    verdict: Verdict
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    usable: int
    memory_source: str
    parts: tuple[Part, ...]
    budget: int
    floor: int
    routed: int
    engine: Io
    cache_size: int
    ctx: int
    ubatch: int
    kv_type: str
    kv_bytes: int
    prompt_cache: int
    checkpoints: int
    checkpoint_bytes: int
    speed: Speed | None

    def peak_after(self, tokens: int) -> int:
        """Memory in use when so many tokens were decoded, page cache included.

        A server's pools are left out. `mmap` takes all that there is, `direct` its budget, as far
        as the tokens ask for that many experts.
        """
        used = sum(part.nbytes for part in self.parts if part.is_used) - self.budget
        room = self.budget if self.engine == "direct" else min(self.routed, self.usable - used)
        return used + (self.speed.held_after(tokens, room, self.routed) if self.speed else room)

    @property
    def works(self) -> bool:
        """Whether it is worth starting."""
        return self.verdict != "cannot work"


def make(
    facts: ModelFacts,
    options: Options | None = None,
    *,
    here: Memory | None = None,
    machine: Machine | None = None,
) -> Plan:
    """Plan a model. Raises `ModelError` for a cache type that its heads do not allow.

    `here` and `machine` are looked up unless given.
    """
    options, here = options or Options(), here or memory.usable()
    shares = _settle(facts, options, here)
    routed, floor = weights.split(facts).routed, weights.demand(facts)
    reasons = shares.impossible(weights.least_budget(facts))
    if reasons and (ctx := _smaller_context(facts, options, here, shares.ctx)):
        reasons.append(f"with a context of {ctx:,} tokens it would work: --ctx {ctx}")
    budget = min(max(0, shares.experts), routed)
    engine = shares.engine
    found = None
    if not reasons:
        known = machine or known_machine(facts, options)
        held = budget if engine == "direct" else min(routed, budget + shares.reserve)
        found = speed.estimate(facts, known, budget=held, engine=engine, ubatch=shares.ubatch)
    verdict, why = _verdict(budget, routed, floor, found)
    return Plan(
        model=facts,
        verdict="cannot work" if reasons else verdict,
        reasons=tuple(reasons) or (why,),
        notes=tuple(_notes(facts, options, shares, works=not reasons)),
        usable=shares.usable,
        memory_source=shares.source,
        parts=shares.parts(routed),
        budget=budget,
        floor=floor,
        routed=routed,
        engine=engine,
        cache_size=budget // sizes.MIB * sizes.MIB if engine == "direct" else 0,
        ctx=shares.ctx,
        ubatch=shares.ubatch,
        kv_type=shares.kv_type,
        kv_bytes=shares.kv_bytes,
        prompt_cache=shares.prompt_cache,
        checkpoints=shares.checkpoints,
        checkpoint_bytes=shares.checkpoint_bytes,
        speed=found,
    )


def known_machine(facts: ModelFacts, options: Options, file: Path | None = None) -> Machine:
    """This machine's cores and what was measured on it. Another one's disk is not this one's."""
    here = options.ram is None and not facts.missing_bytes
    return Machine(
        cores=options.cores or toolchain.cores(),
        disk_rate=options.disk_rate,
        disks=history.disks(facts.path, file) if here else (),
        runs=history.runs(facts, file) if options.ram is None else (),
        others=history.all_runs(file) if options.ram is None else (),
        hits=history.hits(facts, file),
    )


def _settle(facts: ModelFacts, options: Options, here: Memory) -> Shares:
    """Choose the micro-batch and the cache type, and split the memory."""
    context = kv.memory(facts)
    ctx = options.ctx or facts.context_length or kv.DEFAULT_CONTEXT
    kinds = [options.kv_type] if options.kv_type else ["f16", "q8_0"]
    if not context.fits_type(kinds[0]):
        raise ModelError(
            f"{facts.path.name} does not work with a cache of type {kinds[0]}",
            evidence=[f"lengths of its keys and values: {sorted(set(context.heads))}"],
            hint="--kv-type f16",
        )

    def split(kv_type: str, ubatch: int) -> Shares:
        return plan_parts.split(
            facts,
            context,
            here,
            options.ram,
            options.limit,
            ctx=ctx,
            kv_type=kv_type,
            ubatch=ubatch,
        )

    floor = weights.demand(facts)
    shares = split(kinds[0], options.ubatch or DEFAULT_UBATCH)
    if shares.experts < floor and len(kinds) > 1 and context.fits_type(kinds[1]):
        shares = split(kinds[1], shares.ubatch)
    if options.ubatch:
        return shares
    for ubatch in UBATCHES:
        other = split(shares.kv_type, ubatch)
        fits = other.experts >= max(floor, 1)
        if ubatch > DEFAULT_UBATCH:
            streams = shares.experts < weights.split(facts).routed
            cheap = shares.experts - other.experts <= UBATCH_COST * shares.experts
            fits = fits and streams and cheap and ubatch <= ctx
        if fits:
            return other
    return split(shares.kv_type, UBATCHES[-1])


def _smaller_context(facts: ModelFacts, options: Options, here: Memory, ctx: int) -> int:
    """The longest of ever shorter contexts that works; 0 = none."""
    while (ctx := ctx // 2) >= LEAST_CONTEXT:
        if not _settle(facts, replace(options, ctx=ctx), here).impossible(
            weights.least_budget(facts)
        ):
            return ctx
    return 0


def _verdict(budget: int, routed: int, floor: int, found: Speed | None) -> tuple[Verdict, str]:
    if found is None:
        return "cannot work", ""
    if budget >= routed:
        return "fits", "all experts stay in memory once they are read"
    if budget < floor:
        return "streams slowly", (
            f"the {_mib(budget)} for experts are below one token's demand of {_mib(floor)}: "
            "nothing is found again, every expert is read for every token"
        )
    alone = 1 / ((found.compute.low + found.compute.high) / 2)
    share = f"{_mib(budget)} of {_mib(routed)} of experts stay in memory"
    if found.expected >= min(WELL_RATE, max(LEAST_WELL_RATE, WELL_SHARE * alone)):
        return "streams well", share
    return "streams slowly", share


def _mib(size: int) -> str:
    return f"{size / sizes.MIB:,.0f} MiB"


def _notes(facts: ModelFacts, options: Options, shares: Shares, *, works: bool) -> list[str]:
    found = []
    if facts.missing_bytes:
        found.append("the file holds the header only: the plan is for the whole model")
    if facts.context_length and shares.ctx > facts.context_length:
        found.append(
            f"the model was trained on {facts.context_length:,} tokens of context, "
            f"not {shares.ctx:,}"
        )
    if works and not options.kv_type and shares.kv_type != "f16":
        found.append(
            f"keys and values as {shares.kv_type}, or too little is left for experts; "
            "this changes answers slightly"
        )
    if assumed := kv.memory(facts).assumed:
        found.append(assumed)
    if compute.vocabulary(facts) == 0:
        found.append("the header names no vocabulary: the output's memory is not counted")
    return found
