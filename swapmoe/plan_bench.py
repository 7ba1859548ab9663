"""Holds the plan against reality: generated models under memory limits, predicted and measured."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from swapmoe import openmp, paths, plan
from swapmoe.comparison import GB
from swapmoe.gguf_info import ModelFacts
from swapmoe.memory import Memory
from swapmoe.stream_bench import Bench, Engine, Sample, Task

PRESETS = (
    "35b-a3b-q4_k_m",
    "122b-a10b-q2_k",
    "minimax-iq1_m",
    "deepseek-v4-iq1_m",
    "qwen3-30b-layers",
    "deepseek4-layers",
)
RATIOS = (1.2, 2.0, 3.5)
"""File size / memory. The first has most memory, and is the one of the calibration."""
STEP, COUNTED = 16, 3
"""Tokens of a repetition, and repetitions that count."""
LEAST_COLD, MOST_COLD = 2, 10
"""Repetitions before them."""
NEARLY_FULL = 0.9
RATE_OFF, PEAK_OFF = 0.30, 0.10
"""How far from the measured value a prediction may be."""
CONTEXT, BATCH = 256, STEP
"""What llama-bench takes for these tokens."""


@dataclass(frozen=True)
class Result:
    """One model under one limit; rates in tokens/s, sizes in bytes, misses as shares."""

    preset: str
    ratio: float
    file_bytes: int
    limit: int
    planned_engine: str
    engine: str
    low: float
    expected: float
    high: float
    rate: float | None
    planned_misses: float
    misses: float
    planned_peak: int
    peak: int
    outcome: str

    @property
    def rate_off(self) -> float | None:
        """How far the expected rate is from the measured one, as a share of it."""
        return self.expected / self.rate - 1 if self.rate else None

    @property
    def peak_off(self) -> float:
        """The same of the memory."""
        return self.planned_peak / self.peak - 1 if self.peak else 1.0

    @property
    def is_off(self) -> list[str]:
        """What was not predicted well enough; empty when all was."""
        found = []
        if self.rate_off is None:
            found.append(f"the run {self.outcome}")
        elif abs(self.rate_off) > RATE_OFF:
            found.append(f"decode {self.rate_off:+.0%}")
        if abs(self.peak_off) > PEAK_OFF:
            found.append(f"peak {self.peak_off:+.0%}")
        if self.engine != self.planned_engine:
            found.append(f"engine {self.engine}, not {self.planned_engine}")
        return found


def predict(facts: ModelFacts, limit: int, file: Path) -> plan.Plan:
    """The plan for what llama-bench does, with what `file` says was measured."""
    options = plan.Options(ctx=CONTEXT, limit=limit, ubatch=BATCH, kv_type="f16")
    here = Memory(limit, limit, "the memory limit")
    machine = plan.known_machine(facts, options, file)
    return plan.make(facts, options, here=here, machine=machine)


def measure(facts: ModelFacts, bench: Bench, made: plan.Plan, preset: str, ratio: float) -> Result:
    """Decode as planned, and compare."""
    assert made.speed is not None
    cold = cold_steps(made)
    task = Task(STEP, is_prompt=False, repeats=cold + COUNTED, cold=cold)
    bench = replace(bench, env={**bench.env, **openmp.variables(made.engine, os.environ)})
    sample = bench.sample(Engine("auto", "auto"), task, made.usable)
    found = made.speed
    return Result(
        preset=preset,
        ratio=ratio,
        file_bytes=facts.file_bytes,
        limit=made.usable,
        planned_engine=made.engine,
        engine=engine_of(sample),
        low=found.decode.low,
        expected=found.expected,
        high=found.decode.high,
        rate=sample.rate,
        planned_misses=(found.misses.low + found.misses.high) / 2,
        misses=sample.part.read / max(1, found.reads * sample.tokens),
        planned_peak=made.peak_after(STEP * task.repeats),
        peak=sample.peak or 0,
        outcome=sample.outcome,
    )


def engine_of(sample: Sample) -> str:
    """What `auto` chose: only direct has readers."""
    return "direct" if sample.readers else "mmap"


def cold_steps(made: plan.Plan) -> int:
    """Repetitions until about as much is in memory as will be."""
    assert made.speed is not None
    misses = (made.speed.misses.low + made.speed.misses.high) / 2
    tokens = NEARLY_FULL * made.budget / max(1.0, made.speed.reads * misses)
    return min(MOST_COLD, max(LEAST_COLD, int(-(-tokens // STEP))))


def table(results: Sequence[Result]) -> list[list[str]]:
    """Rows for a page, under a heading."""
    rows = [["model", "file/RAM", "io", "plan tok/s", "tok/s", "off", "plan GB", "GB", "off"]]
    for result in results:
        off = result.rate_off
        rows.append(
            [
                result.preset,
                f"{result.ratio:g}",
                result.engine,
                f"{result.expected:.1f} ({result.low:.1f}-{result.high:.1f})",
                f"{result.rate:.1f}" if result.rate else result.outcome,
                "-" if off is None else f"{off:+.0%}",
                f"{result.planned_peak / GB:.2f}",
                f"{result.peak / GB:.2f}",
                f"{result.peak_off:+.0%}",
            ]
        )
    return rows


def verdict(results: Sequence[Result]) -> list[str]:
    """How many predictions held, and which did not."""
    bad = [result for result in results if result.is_off]
    lines = [
        f"{len(results) - len(bad)} of {len(results)} rows within {RATE_OFF:.0%} of the decode "
        f"rate and {PEAK_OFF:.0%} of peak memory"
    ]
    return lines + [f"{r.preset}, {r.ratio:g}: {', '.join(r.is_off)}" for r in bad]


class State:
    """What is done already, in a file: an interrupted run goes on where it stopped.

    `build` names what is measured; results of another one are forgotten.
    """

    def __init__(self, file: Path, build: str) -> None:
        self._file = file
        self._build = build
        self._results: dict[str, Result] = {}
        self.calibrated: dict[str, str] = {}
        """Presets -> one line on their calibration."""
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if data["build"] == build:
                self._results = {key: Result(**values) for key, values in data["results"].items()}
                self.calibrated = dict(data["calibrated"])
        except (OSError, ValueError, TypeError, KeyError):
            pass
        if not self.calibrated:
            self.history.unlink(missing_ok=True)

    @property
    def history(self) -> Path:
        """The history that plans of this benchmark are made with: its own."""
        return self._file.with_suffix(".history.jsonl")

    @property
    def results(self) -> list[Result]:
        """All so far, in the order of the table."""
        order = {preset: number for number, preset in enumerate(PRESETS)}
        return sorted(self._results.values(), key=lambda r: (order.get(r.preset, 99), r.ratio))

    def has(self, preset: str, ratio: float) -> bool:
        """Whether a row is done."""
        return f"{preset} {ratio}" in self._results

    def add(self, result: Result) -> None:
        """Keep a row."""
        self._results[f"{result.preset} {result.ratio}"] = result
        self._save()

    def add_calibration(self, preset: str, line: str) -> None:
        """Keep that a model was calibrated; its figures are in the history."""
        self.calibrated[preset] = line
        self._save()

    def forget(self, preset: str) -> None:
        """Drop all of one model, so that it is measured again."""
        self.calibrated.pop(preset, None)
        for key in [key for key, result in self._results.items() if result.preset == preset]:
            del self._results[key]
        self._save()

    def _save(self) -> None:
        data = {
            "build": self._build,
            "calibrated": self.calibrated,
            "results": {key: asdict(result) for key, result in self._results.items()},
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        paths.atomic_write_text(self._file, json.dumps(data, indent=2) + "\n")
