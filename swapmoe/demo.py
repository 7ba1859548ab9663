"""The whole chain on a generated model: fetch, patch, build, generate, run, and what came out."""

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from swapmoe import build, console, flag_table, launch, models, paths, run
from swapmoe.config import RunSettings
from swapmoe.errors import LaunchError
from swapmoe.model_spec import ModelSpec
from swapmoe.pins import Pin
from swapmoe.smoke import child_env

MODEL = ModelSpec(
    arch="qwen3moe",
    layers=6,
    embd=512,
    experts=32,
    used=4,
    ffn=512,
    heads=8,
    kv_heads=2,
    head_dim=64,
    vocab=2048,
    locality=0.5,
)
PROMPT = "Tell me about experts on disk."
TOKENS = 48
SEED = 1
TIMEOUT_SECONDS = 300.0

_TRACKING = re.compile(r"expert_stream: tracking (\d+) routed expert slices")
_STATISTICS = re.compile(r"expert_stream: statistics: (.+)")
_SPEED = re.compile(r"\[ Prompt: ([\d.]+) t/s \| Generation: ([\d.]+) t/s \]")


@dataclass(frozen=True)
class Result:
    """What the demo shows; speed in tokens per second, `statistics` as the engine prints them."""

    text: str
    prompt_speed: float
    speed: float
    slices: int
    statistics: dict[str, int]
    version_line: str
    model: str
    command: str

    def to_json(self) -> dict[str, object]:
        """The result for machines."""
        return asdict(self)


def demo(
    pin: Pin, options: build.BuildOptions, settings: RunSettings, source: str = "auto"
) -> Result:
    """Run the chain. Raises what its steps raise, and `LaunchError` when nothing was streamed."""
    build.ensure_built(pin, options, source)
    plan = launch.prepare(
        launch.Request(
            model=demo_model(),
            prompt=PROMPT,
            settings=settings.model_copy(update={"n_predict": TOKENS, "seed": SEED}),
            verbose=True,
        ),
        pin,
    )
    _forget(plan.facts.path)
    console.say(f"running: {plan.command}")
    done = run.capture(
        plan.argv, env=plan.environment(child_env()), check=False, timeout=TIMEOUT_SECONDS
    )
    if done.returncode != 0:
        raise _failed(done, f"{flag_table.CLI} ended with exit code {done.returncode}")
    return _read(done, plan)


def demo_model() -> Path:
    """The demo's model (about 90 MB of random weights), written once into the cache."""
    folder = paths.cache_dir() / "models"
    with console.progress("writing the demo model", models.total_bytes(MODEL)) as update:
        return models.ensure_model(MODEL, folder, "demo", progress=update)


def _forget(path: Path) -> None:
    """Drop a file from the page cache, so that the bytes read are read from the disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(done: run.Completed, plan: launch.Plan) -> Result:
    tracking = _TRACKING.search(done.stderr)
    statistics = _STATISTICS.search(done.stderr)
    speed = _SPEED.search(done.stdout)
    if not (tracking and statistics and speed):
        raise _failed(done, f"{flag_table.CLI} ran, but does not say that experts were streamed")
    if int(tracking[1]) != plan.facts.slices:
        raise _failed(
            done, f"the engine tracks {tracking[1]} slices, the model has {plan.facts.slices}"
        )
    answer = done.stdout[: speed.start()].rpartition(f"> {PROMPT}\n")[2]
    return Result(
        text=answer.strip(),
        prompt_speed=float(speed[1]),
        speed=float(speed[2]),
        slices=int(tracking[1]),
        statistics={k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", statistics[1])},
        version_line=plan.receipt.version_line,
        model=str(plan.facts.path),
        command=plan.command,
    )


def _failed(done: run.Completed, what: str) -> LaunchError:
    lines = (done.stdout + done.stderr).splitlines()[-run.TAIL_LINES :]
    return LaunchError(
        what,
        evidence=[f"command: {run.shell_quote(done.argv)}", *lines],
        hint="swapmoe patch verify, then swapmoe build --force",
    )


def describe(result: Result) -> list[str]:
    """The result for people (the words of a model of random weights mean nothing)."""
    return [
        f"text           {result.text!r}",
        f"tokens/s       {result.speed:.1f} (prompt {result.prompt_speed:.1f})",
        f"slices tracked {result.slices:,}",
        f"bytes read     {result.statistics.get('read_bytes', 0):,}",
        f"binary         {result.version_line}",
    ]
