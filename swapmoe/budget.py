"""Checks the expert options against the model's header, by the engine's rules, before a launch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swapmoe import sizes
from swapmoe.config import RunSettings
from swapmoe.errors import ModelError, UsageError
from swapmoe.flags import Given
from swapmoe.gguf_info import ModelFacts

OVERRIDE = "--override-kv"
USED_KEY = "expert_used_count"


@dataclass(frozen=True)
class Demand:
    """What one token needs: experts chosen per layer, and the bytes of their slices."""

    used: int
    bytes_per_token: int

    @property
    def floor_mib(self) -> int:
        """The smallest cache size, in MiB."""
        return sizes.floor_mib(self.bytes_per_token)


def demand(facts: ModelFacts, given: Sequence[Given]) -> Demand:
    """One token's demand, with the user's override of the experts used.

    Raises `UsageError` for an override that is malformed, `ModelError` for one that does not fit.
    """
    override = _used_override(facts, given)
    used = facts.expert_used_count if override is None else override
    return Demand(used, facts.bytes_per_token(used))


def _used_override(facts: ModelFacts, given: Sequence[Given]) -> int | None:
    found: list[tuple[str, str]] = []
    for option in given:
        if option.name == OVERRIDE:
            for item in (option.value or "").split(","):
                key, _, value = item.strip().strip('"').partition("=")
                if key.rpartition(".")[2] == USED_KEY:
                    found.append((key, value))
    if not found:
        return None
    if len(found) > 1:
        raise UsageError(f"{USED_KEY} is overridden {len(found)} times", hint="give it once")
    key, value = found[0]
    wanted = f"{facts.architecture}.{USED_KEY}"
    kind, _, number = value.partition(":")
    if kind != "int" or not (number.isascii() and number.isdigit()):
        raise UsageError(
            f"{OVERRIDE} {key} needs type int and a whole number, not {value!r}",
            hint=f"{OVERRIDE} {wanted}=int:K",
        )
    if key != wanted:
        raise ModelError(
            f"{OVERRIDE} {key} would be ignored: {facts.path.name} is a {facts.architecture} model",
            hint=f"{OVERRIDE} {wanted}={value}",
        )
    if len(number) > 9 or not 1 <= int(number) <= facts.expert_count:
        raise ModelError(
            f"{number} experts per token cannot be used; {facts.path.name} has "
            f"{facts.expert_count} per layer and uses {facts.expert_used_count}",
            hint=f"{OVERRIDE} {wanted}=int:K with K from 1 to {facts.expert_count}",
        )
    return int(number)


def check_combination(settings: RunSettings, given: Sequence[Given], env: Mapping[str, str]) -> int:
    """Refuse options that mean nothing or that cannot work together. Raises `UsageError`.

    Returns how many tokens speculative decoding drafts for each one it checks; 0 = it is off.
    """
    drafted = drafted_tokens(given, env)
    if settings.fixation == 1:
        raise UsageError(
            "a fixation of 1 pass fixes nothing: the first pass of a window chooses anew",
            hint="give at least 2, or 0 for none",
        )
    if settings.fixation and drafted:
        raise UsageError(
            "fixation cannot be used with speculative decoding",
            evidence=["a pass that checks several drafted tokens has no one choice to keep"],
            hint="leave out --fixation (run.fixation) or the draft options",
        )
    slots = next((o.value for o in reversed(given) if o.name in ("-np", "--parallel")), "1")
    if settings.fixation and slots != "1":
        raise UsageError(
            f"fixation needs one slot, not {slots}: several would share one choice of experts",
            hint="leave out --fixation (run.fixation) or --parallel",
        )
    return drafted


def check_limits(settings: RunSettings, facts: ModelFacts, need: Demand) -> None:
    """Raises `ModelError`, with the floor, for a limit below what one token of the model needs."""
    if 0 < settings.keep_recent < need.used:
        raise ModelError(
            f"keep-recent {settings.keep_recent} is below the {need.used} experts per layer that "
            f"each token of {facts.path.name} uses",
            evidence=["the next token would find none of its experts in memory"],
            hint=f"--keep-recent {need.used} or more, or 0 for no limit",
        )
    is_mapped = settings.io in ("mmap", "fault")
    if is_mapped and 0 < sizes.whole_mib(settings.cache_size) < need.floor_mib:
        raise ModelError(
            f"a cache of {sizes.whole_mib(settings.cache_size):,} MiB is below one token's demand",
            evidence=[
                f"{facts.path.name}: {need.used} experts per layer are "
                f"{need.bytes_per_token:,} bytes per token"
            ],
            hint=f"--cache-size {need.floor_mib} (MiB) or more, 0 for no limit, or --io direct",
        )


def remarks(settings: RunSettings, facts: ModelFacts, need: Demand, drafted: int) -> list[str]:
    """What the user should know about these options with this model."""
    found: list[str] = []
    if need.used != facts.expert_used_count:
        found.append(
            f"experts per token and layer: {need.used} instead of {facts.expert_used_count}; "
            f"bytes of experts per token: {need.bytes_per_token:,} instead of "
            f"{facts.bytes_per_token(facts.expert_used_count):,}"
        )
    if settings.keep_recent >= facts.expert_count > 0:
        found.append(
            f"keep-recent {settings.keep_recent} limits nothing: a layer has "
            f"{facts.expert_count} experts"
        )
    if 0 < sizes.whole_mib(settings.cache_size) < need.floor_mib:
        found.append(
            f"a cache below one token's demand of {need.floor_mib:,} MiB: most experts are read "
            "again for every token"
        )
    if settings.cache_size >= facts.routed_bytes:
        found.append(
            f"the cache size limits nothing: all routed experts are {facts.routed_bytes:,} bytes"
        )
    if drafted and need.used:
        times = min(drafted + 1, facts.expert_count / need.used)
        found.append(
            f"speculative decoding reads up to {times:.1f} times the experts per step: "
            f"{drafted + 1} tokens are checked at once, each with {need.used} of its own "
            f"(up to {times * need.bytes_per_token:,.0f} bytes); usually slower when streaming"
        )
    return found


_DRAFT_MODEL = {
    *("-md", "--model-draft", "--spec-draft-model"),
    *("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"),
}
_DRAFT_ENV = ("LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_SPEC_DRAFT_HF_REPO")
_LENGTHS = {
    "ngram-mod": ("--spec-ngram-mod-n-max", 64),
    "ngram-simple": ("--spec-ngram-simple-size-m", 48),
    "ngram-map-k": ("--spec-ngram-map-k-size-m", 48),
    "ngram-map-k4v": ("--spec-ngram-map-k4v-size-m", 48),
}
"""Speculation without a model: the option for its length, and the programs' default."""
_DRAFT_LENGTH = ("--spec-draft-n-max", 3)
_DRAFT_LENGTH_ENV = "LLAMA_ARG_SPEC_DRAFT_N_MAX"


def drafted_tokens(given: Sequence[Given], env: Mapping[str, str]) -> int:
    """Tokens drafted at once under these options and variables; 0 without speculative decoding."""
    values = {option.name: option.value or "" for option in given}
    kinds = {
        kind
        for text in (
            env.get("LLAMA_ARG_SPEC_TYPE", ""),
            *(option.value or "" for option in given if option.name == "--spec-type"),
        )
        for kind in text.replace(" ", "").split(",")
        if kind not in ("", "none")
    }
    if "--spec-default" in values:
        kinds.add("ngram-mod")
    if _DRAFT_MODEL & set(values) or any(env.get(name) for name in _DRAFT_ENV):
        kinds.add("draft-simple")
    lengths = []
    for kind in kinds:
        option, default = _LENGTHS.get(kind, _DRAFT_LENGTH)
        text = values.get(option, env.get(_DRAFT_LENGTH_ENV, "") if kind not in _LENGTHS else "")
        lengths.append(int(text) if text.isascii() and text.isdigit() else default)
    return max(1, *lengths) if lengths else 0
