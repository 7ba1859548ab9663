"""Measures the rows of `plan_bench` one by one, saying how it goes."""

import time
from collections.abc import Sequence
from pathlib import Path

from swapmoe import bench_setup, blockdev, console, plan_bench, sizes
from swapmoe.calibrate import calibrate
from swapmoe.errors import LaunchError
from swapmoe.gguf_info import ModelFacts, inspect
from swapmoe.plan_bench import RATIOS, State
from swapmoe.stream_bench import Bench


def limit_of(facts: ModelFacts, ratio: float) -> int:
    """Bytes of memory for a file / memory of `ratio`; whole MiB."""
    return int(facts.file_bytes / ratio) // sizes.MIB * sizes.MIB


def measure(state: State, presets: Sequence[str], program: Path, threads: int) -> None:
    """Measure what is not done yet.

    Raises `LaunchError` for a calibration that shows nothing, or a limit that is too small.
    """
    rows = [(preset, ratio) for preset in presets for ratio in RATIOS]
    for number, (preset, ratio) in enumerate(rows, 1):
        if state.has(preset, ratio):
            continue
        path = bench_setup.model(preset)
        facts, bench = inspect(path), Bench(program, path, threads)
        if preset not in state.calibrated:
            _calibrate(state, facts, bench, preset)
        made = plan_bench.predict(facts, limit_of(facts, ratio), state.history)
        if made.speed is None:
            raise LaunchError(f"{preset} cannot work at {ratio:g}", evidence=made.reasons)
        blockdev.forget(list(facts.shards))
        started = time.monotonic()
        result = plan_bench.measure(facts, bench, made, preset, ratio)
        state.add(result)
        rate = f"{result.rate:.2f}" if result.rate else result.outcome
        console.say(
            f"[{number}/{len(rows)}] {preset}, {ratio:g}: plan {result.expected:.2f} tok/s, "
            f"measured {rate} ({result.engine}); misses {result.planned_misses:.0%}, "
            f"{result.misses:.0%}; {time.monotonic() - started:.0f} s"
        )


def _calibrate(state: State, facts: ModelFacts, bench: Bench, preset: str) -> None:
    """Do the model's one calibration, with the most memory."""
    limit = limit_of(facts, RATIOS[0])
    guess = plan_bench.predict(facts, limit, state.history).speed
    blockdev.forget(list(facts.shards))
    found = calibrate(facts, bench, limit, guess.expected if guess else None)
    found.record(state.history)
    state.add_calibration(preset, found.summary)
    console.say(f"[{preset}] calibration: {found.summary}")
