"""Four clients at once for a while: no error, no long wait, steady memory, moving counters, the
first answer again at the end, a clean end.

The long ones run under a memory limit that the model does not fit into; each takes
SWAPMOE_SOAK_SECONDS (default 600; an hour before a release) and needs to make cgroups.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from swapmoe import demo
from swapmoe.cgroup import memory_limit
from swapmoe.gguf_info import inspect
from swapmoe.model_spec import ModelSpec
from swapmoe.models import write_model
from tests.support.server import Server, serving

pytestmark = pytest.mark.usefixtures("installed")

MIB = 1 << 20
CLIENTS = 4
QUICKLY = 10.0
BESIDES = 64 * MIB
"""Private memory that the server's log does not list: the program, its threads, HTTP, sampling."""
DRIFT = 16 * MIB
"""How much private memory may grow after the first fifth of the time."""
LONGEST_WAIT = 5.0
"""Seconds between two tokens of an answer."""
FIRST_PROMPT, FIRST_TOKENS = "The quick brown fox", 24
WORDS = ("expert", "token", "router", "layer", "disk", "cache", "slice", "model", "quick", "fox")


@dataclass(frozen=True)
class Soak:
    """One run; sizes in bytes. `limit` 0 = no memory limit."""

    spec: ModelSpec
    seconds: float
    cache_mib: int
    limit: int = 0
    io: str = "mmap"


SHORT = Soak(demo.MODEL, seconds=20, cache_mib=24)
LONG = Soak(
    ModelSpec(
        arch="qwen3moe",
        layers=16,
        embd=2048,
        experts=64,
        used=4,
        ffn=512,
        heads=16,
        kv_heads=4,
        head_dim=128,
        vocab=4096,
        ctx=4096,
        locality=0.0,  # so that prompts use most experts, and the next layer is read ahead
    ),
    seconds=float(os.environ.get("SWAPMOE_SOAK_SECONDS", "600")),
    cache_mib=384,
    limit=1024 * MIB,
)


@dataclass
class Tally:
    """What the clients saw."""

    requests: int = 0
    tokens: int = 0
    longest_wait: float = 0.0
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def client(server: Server, seed: int, deadline: float, tally: Tally) -> None:
    """Ask one request after the other until the time is up."""
    rng = random.Random(seed)
    while time.monotonic() < deadline and not tally.errors:
        prompt = " ".join(rng.choices(WORDS, k=rng.randint(1, 60)))
        n = rng.randint(1, 24)
        wait = 0.0
        try:
            done, wait = server.stream(prompt, n)
        except OSError as error:
            done, text = -1, repr(error)
        else:
            text = f"{done} tokens instead of {n}"
        with tally.lock:
            tally.requests += 1
            tally.tokens += max(done, 0)
            tally.longest_wait = max(tally.longest_wait, wait)
            if done != n:
                tally.errors.append(text)


def observe(server: Server, deadline: float, on_sample: Callable[[dict[str, float]], None]) -> None:
    """Look at /metrics every second or so until the time is up."""
    while time.monotonic() < deadline:
        on_sample(server.metrics() | {"private": server.private_bytes()})
        time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))


def soak(folder: Path, plan: Soak) -> Tally:
    """Run it and check everything that can be checked from outside."""
    (model,) = write_model(plan.spec, folder / "soak.gguf")
    tally = Tally()
    samples: list[dict[str, float]] = []
    cache = ("--cache-size", f"{plan.cache_mib}M")
    options = ("-v", "--io", plan.io, "--prefetch", *cache, "--ctx", "1024")
    try:
        with memory_limit(plan.limit) if plan.limit else nullcontext() as group:
            if group:
                assert inspect(model).routed_bytes > plan.limit
            wrap = group.wrap if group else list
            with serving(model, folder / "log", *options, wrap=wrap) as server:
                first = server.complete(FIRST_PROMPT, FIRST_TOKENS)["content"]
                started = time.monotonic()
                deadline = started + plan.seconds
                clients = [
                    threading.Thread(target=client, args=(server, seed, deadline, tally))
                    for seed in range(CLIENTS)
                ]
                for thread in clients:
                    thread.start()
                observe(server, deadline, samples.append)
                for thread in clients:
                    thread.join()
                again = server.complete(FIRST_PROMPT, FIRST_TOKENS)["content"]
                samples.append(server.metrics() | {"private": server.private_bytes()})
                arena = int(samples[-1]["expert_budget_bytes"]) if plan.io == "direct" else 0
                planned = server.planned_bytes() + arena + BESIDES
                code, seconds = server.stop()
            assert not (group and group.oom_kills())
    finally:
        model.unlink()
    print(
        f"{tally.requests} requests, {tally.tokens} tokens, at most {tally.longest_wait:.2f} s "
        f"between two, ended in {seconds:.1f} s"
    )
    print(
        "private MiB:",
        *(int(sample["private"]) // MIB for sample in samples[:: len(samples) // 10 or 1]),
    )
    print(f"planned {planned // MIB} MiB; {samples[-1]}")
    assert tally.errors == []
    assert first
    assert again == first
    assert tally.longest_wait < LONGEST_WAIT
    assert code == 0
    assert seconds < QUICKLY
    private = [int(sample["private"]) for sample in samples]
    check_memory(private, planned, is_long=bool(plan.limit))
    check_counters(samples, plan)
    assert samples[-1]["tokens_predicted_total"] == tally.tokens + 2 * FIRST_TOKENS
    return tally


def check_memory(private: list[int], planned: int, *, is_long: bool) -> None:
    """Private memory stays within what was allocated at the start, and does not creep.

    A short run is still touching for the first time what was allocated.
    """
    assert max(private) <= planned
    if is_long:
        early = max(private[: max(1, len(private) // 5)])
        assert max(private) <= early + DRIFT


def check_counters(samples: list[dict[str, float]], plan: Soak) -> None:
    """Counters only grow, and all of them move; the cache keeps its size between passes."""
    counters = [name for name in samples[0] if name.startswith("expert_") and "_total" in name]
    for name in counters:
        values = [sample[name] for sample in samples]
        assert values == sorted(values), name
    last = samples[-1]
    own = ("stall_seconds",) if plan.io == "direct" else ("hinted", "hint_bytes", "predicted")
    for kind in ("slices_routed", "hits", "misses", "evicted", *own):
        assert last[f"expert_{kind}_total"] > 0, kind
    assert last["expert_io_errors_total"] == 0
    routed = last["expert_hits_total"] + last["expert_misses_total"]
    assert routed == last["expert_slices_routed_total"]
    assert last["expert_resident_bytes"] <= plan.cache_mib * MIB


@pytest.mark.parametrize("io", ["mmap", "direct"])
def test_twenty_seconds(tmp_path: Path, io: str) -> None:
    assert soak(tmp_path, replace(SHORT, io=io)).requests > CLIENTS


@pytest.mark.full
@pytest.mark.parametrize("io", ["mmap", "direct"])
def test_under_a_memory_limit(tmp_path: Path, io: str) -> None:
    assert soak(tmp_path, replace(LONG, io=io)).requests > CLIENTS
