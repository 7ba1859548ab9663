"""Two short runs that tell how a model decodes here: computing, waiting, experts found in memory.

Random tokens are decoded in direct mode from an empty arena, sequence by sequence, and what each
sequence read is counted. As long as nothing has gone yet, the share of the experts that was read so
far is what a cache of that size would hold, and what is read next is what it would miss (Denning's
working sets): one run shows the hit rates of all smaller caches. A second run with a small cache,
which misses much, tells beside the first one what a byte that is read costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median

from swapmoe import history, sizes, speed, weights
from swapmoe.errors import LaunchError
from swapmoe.gguf_info import ModelFacts
from swapmoe.history import Hits, Run
from swapmoe.stream_bench import Bench, Engine, Sample, Task

STEP = 16
"""Tokens of a repetition, which is a sequence of its own: its first tokens find fewer experts than
later ones, so very short sequences would show too many misses."""
LEAST_TOKENS, MOST_TOKENS = 64, 192
SECONDS = 45.0
"""What the first run should take where the speed is guessed right."""
SMALL = Task(tokens=STEP, is_prompt=False, repeats=5, cold=2)
SMALL_SHARE = 1 / 4
"""The second run, and its cache as a share of the first one's."""
FULL_SHARE = 0.98
BINS = 10
LEAST_COMPUTE = 0.05
"""Of the time of a token: computing is at least this."""

Steps = Sequence[tuple[float, int]]
"""Seconds and bytes read of repetitions."""


@dataclass(frozen=True)
class Calibration:
    """What the runs showed, for the history."""

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
    """What to decode first where `expected` tokens/s are expected."""
    tokens = min(MOST_TOKENS, max(LEAST_TOKENS, int(SECONDS * (expected or 0))))
    return Task(tokens=STEP, is_prompt=False, repeats=tokens // STEP, cold=1)


def calibrate(
    facts: ModelFacts, bench: Bench, limit: int | None, expected: float | None = None
) -> Calibration:
    """Run in `limit` bytes of memory (None = as it comes), then with a smaller cache.

    Raises `LaunchError` when a run shows nothing, `ToolError` when memory cannot be limited or the
    program is missing.
    """
    large = _run(bench, Engine("direct", "direct"), task(expected), limit)
    cache = int(min(_budget(large), weights.split(facts).routed) * SMALL_SHARE)
    engine = Engine("direct", "direct", cache_mib=max(1, sizes.whole_mib(cache)))
    small = _run(bench, engine, SMALL, limit)
    return Calibration(run_of(facts, large, small, bench.threads), hits_of(facts, large, small))


def _run(bench: Bench, engine: Engine, wanted: Task, limit: int | None) -> Sample:
    sample = bench.sample(engine, wanted, limit)
    if len(sample.steps) <= wanted.cold:
        raise LaunchError(
            f"{bench.program.name} {sample.outcome}: nothing could be measured",
            evidence=list(sample.tail),
        )
    return sample


def run_of(facts: ModelFacts, large: Sample, small: Sample, threads: int) -> Run:
    """The end of the first run, and what of its time is waiting.

    Waiting is what reading more costs: where little is missing, computing hides it, so the time
    spent waiting says too little about a smaller cache.
    """
    late = _late(large)
    seconds = median(spent for spent, _ in late) / STEP
    read = median(found for _, found in late) / STEP
    waited = seconds_per_byte(late, small.steps[SMALL.cold :]) * read
    return Run(
        model=history.model_key(facts),
        io="direct",
        threads=threads,
        budget=_budget(large),
        active_bytes=speed.active_bytes(facts),
        decode_rate=1 / seconds,
        hit_rate=_hit_rate(facts, read),
        bytes_per_token=read,
        stall=min(waited, (1 - LEAST_COMPUTE) * seconds),
    )


def _budget(sample: Sample) -> int:
    return sample.statistics.get("budget", 0)


def _late(sample: Sample) -> Steps:
    """The second half: in the first one, memory is used for the first time, which costs more."""
    return sample.steps[len(sample.steps) // 2 :]


def seconds_per_byte(few: Steps, many: Steps) -> float:
    """The median slope of time over bytes, from each step of one run to each of another; 0 if none.

    A few steps that something disturbed do not move it.
    """
    slopes = [
        (late[0] - early[0]) / (late[1] - early[1])
        for early, late in product(few, many)
        if late[1] > early[1]
    ]
    return max(0.0, median(slopes)) if slopes else 0.0


def hits_of(facts: ModelFacts, large: Sample, small: Sample) -> tuple[Hits, ...]:
    """The hit rate of each tenth of the experts that was read, and those of the full caches."""
    routed, key = weights.split(facts).routed, history.model_key(facts)
    budget = min(_budget(large) or routed, routed)
    bins: dict[int, list[tuple[float, int]]] = {}
    late: list[int] = []
    seen = 0
    for _seconds, read in large.steps:
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
    small_reads = mean(read for _, read in small.steps[SMALL.cold :]) / STEP
    if _budget(small) < budget:
        points.append((_budget(small) / routed, small_reads))
    return tuple(Hits(key, share, _hit_rate(facts, read)) for share, read in sorted(points))


def _hit_rate(facts: ModelFacts, read: float) -> float:
    return max(0.0, 1 - read / max(1, weights.demand(facts)))
