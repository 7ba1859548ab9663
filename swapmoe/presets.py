"""What a launch takes over from the plan, so that the plan is kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from swapmoe import memory, plan, sizes
from swapmoe.config import RunSettings
from swapmoe.errors import ModelError
from swapmoe.flag_table import Sizing
from swapmoe.flags import Given
from swapmoe.gguf_info import ModelFacts
from swapmoe.memory import Memory
from swapmoe.plan import Plan

_CACHE_TYPES = ("q4_0", "q8_0", "f16")
"""Those the plan knows, smallest first."""
_UBATCH = ("-ub", "--ubatch-size")
_KEYS, _VALUES = ("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v")


@dataclass(frozen=True)
class Preset:
    """A plan, and what of it is written on a command line."""

    plan: Plan
    sizing: Sizing
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The plan in one line."""
        found = f"plan: {self.plan.verdict}: {self.plan.reasons[0]}"
        if self.plan.speed is None:
            return found
        rate = self.plan.speed.decode
        return f"{found}; {rate.low:.2g} to {rate.high:.2g} tokens/s ({rate.source})"


def preset(facts: ModelFacts, settings: RunSettings, given: Sequence[Given]) -> Preset:
    """Plan a launch with these settings and extra arguments.

    Raises `ModelError` when it cannot work within the memory limit or all of this machine's memory;
    when only too little is free at the moment, that is a note.
    """
    options = plan.Options(
        ctx=settings.ctx,
        limit=settings.memory_limit or None,
        kv_type=_cache_type(given),
        ubatch=_ubatch(given),
    )
    here = memory.usable()
    made = plan.make(facts, options, here=here)
    notes = list(made.notes)
    if not made.works:
        roomy = Memory(here.total, here.total, "all memory of this machine")
        if options.limit or not plan.make(facts, options, here=roomy).works:
            raise ModelError(
                f"{facts.path.name} cannot work like this",
                evidence=made.reasons,
                hint=f"swapmoe plan {facts.path}",
            )
        notes += ["too little memory is free at the moment: " + "; ".join(made.reasons)]
    sizing = Sizing(
        prompt_cache=sizes.whole_mib(made.prompt_cache) if made.works else 0,
        checkpoints=made.checkpoints,
        ubatch=made.ubatch if made.ubatch != plan.DEFAULT_UBATCH else None,
        cache_type=made.kv_type if made.kv_type != "f16" else None,
    )
    return Preset(made, sizing, tuple(notes))


def _cache_type(given: Sequence[Given]) -> str | None:
    """The larger of the types asked for, as the plan knows them; None when none is."""
    asked = {
        names: next((o.value or "" for o in reversed(given) if o.name in names), "")
        for names in (_KEYS, _VALUES)
    }
    if not any(asked.values()):
        return None
    ranks = [_CACHE_TYPES.index(kind) if kind in _CACHE_TYPES else 2 for kind in asked.values()]
    return _CACHE_TYPES[max(ranks)]


def _ubatch(given: Sequence[Given]) -> int | None:
    text = next((o.value or "" for o in reversed(given) if o.name in _UBATCH), "")
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) <= 65536 else None
