"""Tables of the I/O benchmark: medians beside what the disk and the processor allow."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from swapmoe.comparison import GB, bullets, markdown_table, mid, ratio
from swapmoe.stream_bench import Sample, Task

MIB = 1 << 20
MARGIN = 64 * MIB
"""What a run may use besides budget, dense weights and llama.cpp's buffers."""
REFERENCE = "fault"
OWN = "direct"


@dataclass(frozen=True)
class Limits:
    """What bounds a model's speed: sizes in bytes, `bandwidth` in bytes/s.

    `in_memory` are runs of the unpatched build with all experts in memory, in each round one of a
    task: they tell how fast computing is. `bandwidth` is that of reads as large as slices, `depth`
    at a time; `demand` what one token needs of the experts.
    """

    experts: int
    dense: int
    demand: int
    bandwidth: float
    depth: int
    in_memory: Sequence[Sample]

    def compute(self, task: Task) -> list[float | None]:
        """Tokens/s of computing alone, by round."""
        return [s.rate for s in self.in_memory if s.task == task.name]

    def processor(self, task: Task) -> float:
        """User and system seconds that computing a token takes."""
        return median(s.part.processor / s.tokens for s in self.in_memory if s.task == task.name)


def _of(samples: Sequence[Sample], task: str, engine: str) -> list[Sample]:
    return [s for s in samples if (s.task, s.engine) == (task, engine)]


def _good(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.outcome == "ok"]


def bounds(samples: Sequence[Sample], task: Task, limits: Limits) -> list[float | None]:
    """Return by round the tokens/s at which `direct` would be bound by computing or by reading.

    1 / max(compute time, bytes read / bandwidth) per token, with the bytes that it did read; None
    for a round in which it failed.
    """
    return [
        1 / max(1 / compute, own.part.read / own.tokens / limits.bandwidth)
        if own.rate and compute and limits.bandwidth
        else None
        for own, compute in zip(_of(samples, task.name, OWN), limits.compute(task), strict=False)
    ]


def _hit(sample: Sample, task: Task, limits: Limits) -> float:
    """Return the share of the experts' bytes that the disk did not have to deliver."""
    wanted = limits.experts if task.is_prompt else limits.demand * sample.tokens
    return max(0.0, 1 - sample.part.read / wanted)


def _stall(sample: Sample) -> float | None:
    """Return the seconds that computing waited for slices, None where nobody counts."""
    found = sample.statistics.get("stall_us")
    return found / 1e6 if found and sample.engine.startswith(OWN) else None


def table(samples: Sequence[Sample], task: Task, limits: Limits) -> list[list[str]]:
    """Return rows of medians under a heading: per token for decoding, else for the whole prompt."""
    if task.is_prompt:
        units, scale, unit = ["GB read", "stall s", "user s", "sys s"], 1.0, GB
    else:
        units, scale, unit = ["MB/tok", "stall ms", "user ms", "sys ms"], 1e3, 1e6
    rows = [["mode", "tok/s", "hit %", *units, "peak GB", "bound %", "ok"]]
    tops = bounds(samples, task, limits)
    for engine in dict.fromkeys(sample.engine for sample in samples if sample.task == task.name):
        own = _of(samples, task.name, engine)
        good = _good(own)

        def per(value: float | None, count: int) -> float | None:
            return None if value is None else value * scale / (1 if task.is_prompt else count)

        rows.append(
            [
                engine,
                mid([s.rate for s in good]),
                mid([100 * _hit(s, task, limits) for s in good], 0),
                mid([s.part.read / unit / (1 if task.is_prompt else s.tokens) for s in good], 1),
                mid([per(_stall(s), s.passes or 1) for s in good], 1),
                mid([per(s.part.user, s.tokens) for s in good], 1),
                mid([per(s.part.system, s.tokens) for s in good], 1),
                mid([s.peak / GB if s.peak is not None else None for s in own]),
                mid(
                    [
                        100 * s.rate / top if s.rate and top else None
                        for s, top in zip(own, tops, strict=False)
                    ],
                    0,
                ),
                f"{len(good)}/{len(own)}",
            ]
        )
    return rows


def notes(samples: Sequence[Sample], task: Task, limits: Limits) -> list[str]:
    """Return what the table of a task shows: failures, ratios round by round, the bound."""
    lines = []
    fault = _of(samples, task.name, REFERENCE)
    for engine in dict.fromkeys(sample.engine for sample in samples if sample.task == task.name):
        own = _of(samples, task.name, engine)
        if bad := [sample.outcome for sample in own if sample.outcome != "ok"]:
            lines.append(f"{task.name}: {engine}: {bad[0]} in {len(bad)} of {len(own)} runs")
        if engine != REFERENCE and (found := ratio(_rates(own), _rates(fault))):
            lines.append(f"{task.name}: {engine} / {REFERENCE}: {found}")
    direct = _of(samples, task.name, OWN)
    if found := ratio(_processor(direct), _processor(fault)):
        lines.append(f"{task.name}: user and system time, {OWN} / {REFERENCE}: {found}")
    tops = bounds(samples, task, limits)
    if any(tops):
        read = median(s.part.read / s.tokens for s in _good(direct))
        lines.append(
            f"{task.name}: bound {mid(tops)} tok/s: computing alone gives "
            f"{mid(limits.compute(task))}, reading {read / 1e6:.1f} MB per token "
            f"{_inverse(read / limits.bandwidth)}"
        )
        if found := ratio(tops, _rates(fault)):
            lines.append(f"{task.name}: bound / {REFERENCE}: {found}")
        lines.append(f"{task.name}: {profile(direct, task, limits)}")
    return lines


def profile(samples: Sequence[Sample], task: Task, limits: Limits) -> str:
    """Return where the time of `direct` goes, in ms per token (medians)."""
    rounds = [
        (1e3 / own.rate, 1e3 / rate)
        for own, rate in zip(samples, limits.compute(task), strict=False)
        if own.rate and rate
    ]
    waiting = median(total - compute for total, compute in rounds)
    good = _good(samples)
    read = 1e3 * median(s.part.read / s.tokens for s in good) / limits.bandwidth
    processor = 1e3 * median(s.part.processor / s.tokens for s in good)
    return (
        f"{OWN}: {median(total for total, _ in rounds):.1f} ms per token; computing as in memory "
        f"takes {median(compute for _, compute in rounds):.1f}, so {waiting:.1f} are waiting, "
        f"where reading alone takes {read:.1f}; processor {processor:.1f} ms, in memory "
        f"{1e3 * limits.processor(task):.1f}"
    )


def _inverse(seconds: float) -> str:
    return f"{1 / seconds:.2f}" if seconds else "any"


def _rates(samples: Sequence[Sample]) -> list[float | None]:
    return [sample.rate for sample in samples]


def _processor(samples: Sequence[Sample]) -> list[float | None]:
    return [s.part.processor if s.outcome == "ok" else None for s in samples]


def planned_bytes(sample: Sample, limits: Limits) -> int:
    """Return what a run was to use: budget, dense weights and llama.cpp's own buffers."""
    return sample.statistics.get("budget", 0) + limits.dense + sum(sample.buffers.values())


def memory_notes(samples: Sequence[Sample], limits: Limits) -> list[str]:
    """Return one line per task: peak memory of `direct` beside what was planned."""
    lines = []
    for task in dict.fromkeys(sample.task for sample in samples):
        own = [s for s in _good(_of(samples, task, OWN)) if s.peak is not None]
        if not own:
            continue
        last = max(own, key=lambda s: (s.peak or 0) - planned_bytes(s, limits))
        planned = planned_bytes(last, limits)
        over = (last.peak or 0) - planned
        lines.append(
            f"{task}: peak of {OWN} {(last.peak or 0) / MIB:.0f} MiB; budget, dense weights, KV "
            f"and compute buffers {planned / MIB:.0f}; {over / MIB:+.0f} (at most +{MARGIN // MIB})"
        )
    return lines


def section(
    facts: Sequence[str], tables: Sequence[tuple[str, list[list[str]]]], ends: Sequence[str]
) -> list[str]:
    """Return the Markdown lines of one model: facts, a table per task, notes."""
    lines = [*bullets(facts), ""]
    for name, rows in tables:
        lines += [f"{name}:", "", *markdown_table(rows), ""]
    return [*lines, *bullets(ends), ""]
