"""A measured run for the history, from the engine's counters."""

from collections.abc import Mapping

from swapmoe import history, speed
from swapmoe.gguf_info import ModelFacts
from swapmoe.history import Run


def run_of(
    facts: ModelFacts,
    counters: Mapping[str, int],
    *,
    io: str,
    threads: int,
    tokens: int,
    decode_rate: float,
    budget: int | None = None,
    prompt_rate: float | None = None,
    served: bool = False,
) -> Run:
    """The run of `tokens` decoded tokens that the counters of `expert_stream: statistics` are of.

    They should cover decoding only. `budget` is what experts could take, for engines that do not
    say it. Only `direct` counts hits and times waiting: in `mmap` both are left unknown.
    """
    looked_up = counters.get("hits", 0) + counters.get("misses", 0)
    direct = io == "direct" and looked_up > 0
    per_token = 1 / max(1, tokens)
    return Run(
        model=history.model_key(facts),
        io=io,
        threads=threads,
        budget=counters.get("budget") or budget or 0,
        active_bytes=speed.active_bytes(facts),
        decode_rate=decode_rate,
        prompt_rate=prompt_rate,
        hit_rate=counters["hits"] / looked_up if direct else None,
        bytes_per_token=counters.get("read_bytes", 0) * per_token,
        stall=counters.get("stall_us", 0) / 1e6 * per_token if direct else None,
        served=int(served),
    )
