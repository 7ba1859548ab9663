"""One run that tells how a model decodes here: computing, waiting, how often experts are found.

Random tokens are decoded in direct mode from an empty arena, sequence by sequence, and what each
sequence read is counted. As long as nothing has gone yet, the share of the experts that was read so
far is what a cache of that size would hold, and what is read next is what it would miss (Denning's
working sets): one run shows the hit rates of all smaller caches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean, median

from swapmoe import history, speed, weights
from swapmoe.errors import LaunchError
from swapmoe.gguf_info import ModelFacts
from swapmoe.history import Hits, Run
from swapmoe.stream_bench import Bench, Engine, Sample, Task

STEP = 16
"""Tokens of a repetition, which is a sequence of its own: its first tokens find fewer experts than
later ones, so very short sequences would show too many misses."""
LEAST_TOKENS, MOST_TOKENS = 64, 192
SECONDS = 45.0
"""What a run should take where the speed is guessed right."""
FULL_SHARE = 0.98
BINS = 10
LEAST_COMPUTE = 0.05
"""Of the time of a token: computing is at least this."""


@dataclass(frozen=True)
class Calibration:
    """What a run showed, for the history."""

    sample: Sample
    run: Run
    hits: tuple[Hits, ...]

    @property
    def summary(self) -> str:
        """What was measured, in one line."""
        waits, read = self.run.stall or 0.0, (self.run.bytes_per_token or 0.0) / 1e6
        points = ", ".join(f"{each.hit_rate:.0%} at {each.share:.0%}" for each in self.hits)
        return (
            f"compute {(1 / self.run.decode_rate - waits) * 1e3:.0f} ms a token, waits "
            f"{waits * 1e3:.0f} ms for {read:.0f} MB; hits {points}"
        )

    def record(self, file: Path | None = None) -> None:
        """Add it to the history. Raises `OSError`."""
        history.record(self.run, *self.hits, file=file)


def task(expected: float | None) -> Task:
    """What to decode where `expected` tokens/s are expected."""
    tokens = min(MOST_TOKENS, max(LEAST_TOKENS, int(SECONDS * (expected or 0))))
    return Task(tokens=STEP, is_prompt=False, repeats=tokens // STEP, cold=1)


def calibrate(
    facts: ModelFacts, bench: Bench, limit: int | None, expected: float | None = None
) -> Calibration:
    """Run once, in `limit` bytes of memory (None = as it comes).

    Raises `LaunchError` when the run shows nothing, `ToolError` when memory cannot be limited or
    the program is missing.
    """
    wanted = task(expected)
    sample = bench.sample(Engine("direct", "direct"), wanted, limit)
    if not sample.steps:
        raise LaunchError(
            f"{bench.program.name} {sample.outcome}: nothing could be measured",
            evidence=list(sample.tail),
        )
    return Calibration(
        sample=sample,
        run=run_of(facts, sample, bench.threads),
        hits=hits_of(facts, sample),
    )


def run_of(facts: ModelFacts, sample: Sample, threads: int) -> Run:
    """All of the run but its first tokens, which wait for the other weights too.

    Waiting is what reading more costs, over all that was read: where little is missing, computing
    hides it, so the time spent waiting says too little about a smaller cache.
    """
    counted = sample.steps[1:] or sample.steps
    tokens = STEP * len(counted)
    seconds = sum(spent for spent, _ in counted)
    read = sum(bytes_read for _, bytes_read in counted)
    waited = seconds_per_byte(counted) * read
    return Run(
        model=history.model_key(facts),
        io="direct",
        threads=threads,
        budget=sample.statistics.get("budget", 0),
        active_bytes=speed.active_bytes(facts),
        decode_rate=tokens / seconds,
        hit_rate=_hit_rate(facts, read / tokens),
        bytes_per_token=read / tokens,
        stall=min(waited, (1 - LEAST_COMPUTE) * seconds) / tokens,
    )


def seconds_per_byte(steps: Sequence[tuple[float, int]]) -> float:
    """The median slope of time over bytes read between any two steps (Theil and Sen); 0 if none.

    A few steps that something disturbed do not move it.
    """
    slopes = [
        (late[0] - early[0]) / (late[1] - early[1])
        for early, late in combinations(steps, 2)
        if late[1] != early[1]
    ]
    return max(0.0, median(slopes)) if slopes else 0.0


def hits_of(facts: ModelFacts, sample: Sample) -> tuple[Hits, ...]:
    """The hit rate of each tenth of the experts that was read, and the one at the end."""
    routed, key = weights.split(facts).routed, history.model_key(facts)
    budget = min(sample.statistics.get("budget", routed), routed)
    bins: dict[int, list[tuple[float, int]]] = {}
    late: list[int] = []
    seen = 0
    for _seconds, read in sample.steps:
        if seen < FULL_SHARE * budget:
            share = min(seen + read / 2, budget) / routed
            bins.setdefault(int(share * BINS), []).append((share, read))
        else:
            late.append(read)
        seen += read
    points = [
        (mean(share for share, _ in each), mean(read for _, read in each) / STEP)
        for _, each in sorted(bins.items())
    ]
    if late:
        points = [point for point in points if point[0] < FULL_SHARE * budget / routed]
        points.append((budget / routed, mean(late) / STEP))
    return tuple(Hits(key, share, _hit_rate(facts, read)) for share, read in points)


def _hit_rate(facts: ModelFacts, read: float) -> float:
    return max(0.0, 1 - read / max(1, weights.demand(facts)))
