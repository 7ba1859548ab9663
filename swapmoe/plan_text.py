"""A plan as lines for people, and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict

from swapmoe.plan import Plan
from swapmoe.plan_parts import DIRECT_ABOVE
from swapmoe.sizes import MIB
from swapmoe.speed import GB, Range, Speed

TOKENS = (100, 1000)
"""When to say how much memory is in use."""
CALIBRATE = "--calibrate, or a server's own runs, put what is measured here in place of that"


def to_json(plan: Plan) -> dict[str, object]:
    """The plan for machines; sizes in bytes, rates per second."""
    model = plan.model
    speed = plan.speed
    return {
        "model": {
            "path": str(model.path),
            "architecture": model.architecture,
            "file_bytes": model.file_bytes,
            "header_only": bool(model.missing_bytes),
        },
        "verdict": plan.verdict,
        "works": plan.works,
        "reasons": list(plan.reasons),
        "notes": list(plan.notes),
        "memory": {
            "usable": plan.usable,
            "source": plan.memory_source,
            "parts": [
                {"name": p.name, "bytes": p.nbytes, "from": _origin(p.certain)} for p in plan.parts
            ],
            "in_use_after": {str(tokens): plan.peak_after(tokens) for tokens in TOKENS},
        },
        "experts": {"bytes": plan.routed, "budget": plan.budget, "floor": plan.floor},
        "engine": {"io": plan.engine, "cache_size": plan.cache_size},
        "context": {"tokens": plan.ctx, "type": plan.kv_type, "bytes": plan.kv_bytes},
        "ubatch": plan.ubatch,
        "server": {
            "prompt_cache": plan.prompt_cache,
            "checkpoints": plan.checkpoints,
            "checkpoint_bytes": plan.checkpoint_bytes,
        },
        "speed": None if speed is None else asdict(speed),
    }


def _origin(certain: bool) -> str:
    return "header" if certain else "estimate"


def lines(plan: Plan) -> Iterator[str]:
    """The plan for people, at most 80 columns but for paths and reasons."""
    model = plan.model
    yield f"{model.path.name}: {model.architecture}, {_gb(model.file_bytes + model.missing_bytes)}"
    yield ""
    yield f"verdict: {plan.verdict}" + (" because" if not plan.works else "")
    for reason in plan.reasons:
        yield f"  {reason}"
    yield ""
    yield f"memory: {_mib(plan.usable)} MiB usable, {plan.memory_source}"
    for part in plan.parts:
        yield f"  {_mib(part.nbytes):>9} MiB  {part.name}{'' if part.certain else ' (~)'}"
    yield f"  {_mib(plan.floor):>9} MiB  of experts are one token's demand"
    if plan.speed is not None:
        yield ""
        yield from _speed(plan, plan.speed)
    for note in plan.notes:
        yield f"note: {note}"


def _speed(plan: Plan, speed: Speed) -> Iterator[str]:
    if plan.verdict == "fits":
        yield "engine: mmap, without a limit"
    elif plan.engine == "direct":
        yield (
            f"engine: direct, cache size {_mib(plan.cache_size)} MiB "
            f"(experts are over {DIRECT_ABOVE} times what is left)"
        )
    else:
        yield f"engine: mmap (experts are at most {DIRECT_ABOVE} times what is left)"
    kept = f"{plan.checkpoints} checkpoints of {plan.checkpoint_bytes / MIB:,.1f} MiB"
    yield (
        f"server: one slot, prompt cache {_mib(plan.prompt_cache)} MiB, "
        f"{kept if plan.checkpoint_bytes else 'checkpoints not needed'}"
    )
    yield (
        "memory in use: "
        + ", ".join(f"{_mib(plan.peak_after(n))} MiB after {n:,} tokens" for n in TOKENS)
    )
    yield f"decode:  {_rates(speed.decode)} tokens/s ({speed.decode.source})"
    yield f"prefill: {_rates(speed.prefill)} tokens/s in micro-batches of {plan.ubatch:,}"
    yield ""
    yield "decode = 1 / (compute + demand x misses / bandwidth), or the larger of the two"
    yield f"  demand     {speed.reads / 1e6:,.0f} MB of experts for each token (header)"
    yield f"  misses     {speed.misses.low:.0%} to {speed.misses.high:.0%} ({speed.misses.source})"
    low, high = f"{speed.bandwidth.low / GB:.2f}", f"{speed.bandwidth.high / GB:.2f}"
    both = low if low == high else f"{low} to {high}"
    yield f"  bandwidth  {both} GB/s ({speed.bandwidth.source})"
    spent = f"{speed.compute.low * 1e3:,.0f} to {speed.compute.high * 1e3:,.0f} ms"
    yield f"  compute    {spent} for each token ({speed.compute.source})"
    yield (
        f"prefill: each micro-batch reads up to {_gb(speed.touched)} of experts; compute assumed"
    )
    yield "(~): estimated or chosen; the other sizes are exact, from the header"
    if "assumed" in speed.compute.source or "published" in speed.misses.source:
        yield CALIBRATE


def _rates(found: Range) -> str:
    return f"{_rate(found.low)} to {_rate(found.high)}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f}"


def _gb(size: int) -> str:
    return f"{size / GB:,.2f} GB"
