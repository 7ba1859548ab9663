"""Records how fast a server decodes, so that the next plan is made from what was measured.

The server is asked for its counters when it has answered something and rests, never while it
computes. The first tokens do not count: experts come in that stay. One record for each start.
"""

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swapmoe import console, health, history, measured
from swapmoe.gguf_info import ModelFacts
from swapmoe.health import Endpoint
from swapmoe.history import Run
from swapmoe.readiness import vitals

PAUSE_SECONDS = 2.0
RESTING_SHARE = 0.05
"""Less of one core's time than this is resting."""
COLD_TOKENS, COUNTED_TOKENS = 32, 32
PROMPT_SHARE = 0.25
"""Prompt tokens for each token decoded, at most: what they read cannot be told apart."""

_CHOSEN = re.compile(r"expert_stream: io = (\w+)")


@dataclass(frozen=True)
class Window:
    """What happened between two looks at the counters."""

    tokens: int
    prompt_tokens: int
    seconds: float
    counters: Mapping[str, int]


def window(before: Mapping[str, float], after: Mapping[str, float]) -> Window:
    """The difference of two answers of /metrics."""

    def since(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    names = {
        "hits": "expert_hits_total",
        "misses": "expert_misses_total",
        "read_bytes": "expert_read_bytes_total",
    }
    counters = {name: max(0, int(since(metric))) for name, metric in names.items()}
    counters["stall_us"] = max(0, int(since("expert_stall_seconds_total") * 1e6))
    counters["budget"] = int(after.get("expert_budget_bytes", 0))
    return Window(
        tokens=int(since("tokens_predicted_total")),
        prompt_tokens=int(since("prompt_tokens_total")),
        seconds=_decoding_seconds(after) - _decoding_seconds(before),
        counters=counters,
    )


def _decoding_seconds(found: Mapping[str, float]) -> float:
    """The counter is in whole seconds; the average rate since the start is exact."""
    rate = found.get("predicted_tokens_seconds", 0.0)
    return found.get("tokens_predicted_total", 0.0) / rate if rate > 0 else 0.0


class Recorder:
    """Called now and then while a server runs, until it has recorded a run or cannot."""

    def __init__(
        self,
        facts: ModelFacts,
        where: Endpoint,
        read_log: Callable[[], str],
        *,
        threads: int,
        budget: int,
    ) -> None:
        self._facts = facts
        self._where = where
        self._read_log = read_log
        self._threads = threads
        self._budget = budget
        self._looked = time.monotonic()
        self._cpu = 0.0
        self._cpu_asked = -1.0
        self._before: dict[str, float] | None = None

    def __call__(self, pid: int) -> bool:
        """Whether there is nothing more to do."""
        now = time.monotonic()
        if now - self._looked < PAUSE_SECONDS:
            return False
        found = vitals(pid)
        if found is None:
            return True
        spent, passed = found.cpu - self._cpu, now - self._looked
        self._looked, self._cpu = now, found.cpu
        worked = found.cpu - self._cpu_asked > RESTING_SHARE * PAUSE_SECONDS
        if spent > RESTING_SHARE * passed or not worked:
            return False
        self._cpu_asked = found.cpu
        return self._look()

    def _look(self) -> bool:
        after = health.metrics(self._where)
        if after is None or "expert_misses_total" not in after:
            return True  # an API key is asked for, or the user has switched the counters off
        if after.get("requests_processing", 0):
            return False
        if self._before is None:
            if after.get("tokens_predicted_total", 0) >= COLD_TOKENS:
                self._before = after
            return False
        seen = window(self._before, after)
        if seen.prompt_tokens > PROMPT_SHARE * max(seen.tokens, COUNTED_TOKENS):
            self._before = after
            return False
        if seen.tokens < COUNTED_TOKENS:
            return False
        if run := self._run(seen):
            with contextlib.suppress(OSError):
                history.record(run)
                console.say(
                    f"measured for the next plan: {run.decode_rate:.2f} tokens/s in {run.io}"
                )
        return True

    def _run(self, seen: Window) -> Run | None:
        chosen = _CHOSEN.search(self._read_log())
        if chosen is None or seen.seconds <= 0:
            return None
        return measured.run_of(
            self._facts,
            seen.counters,
            io=chosen[1],
            threads=self._threads,
            tokens=seen.tokens,
            decode_rate=seen.tokens / seen.seconds,
            budget=self._budget,
            served=True,
        )
