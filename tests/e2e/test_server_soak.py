"""Four clients at once for a while: no error, steady memory, moving counters, a clean end.

The long one runs under a memory limit that the model does not fit into; it takes
SWAPMOE_SOAK_SECONDS (default 600) and needs to make cgroups.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
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
WORDS = ("expert", "token", "router", "layer", "disk", "cache", "slice", "model", "quick", "fox")


@dataclass(frozen=True)
class Soak:
    """One run; sizes in bytes. `limit` 0 = no memory limit."""

    spec: ModelSpec
    seconds: float
    cache_mib: int
    limit: int = 0


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
        locality=0.5,
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
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def client(server: Server, seed: int, deadline: float, tally: Tally) -> None:
    """Ask one request after the other until the time is up."""
    rng = random.Random(seed)
    while time.monotonic() < deadline and not tally.errors:
        prompt = " ".join(rng.choices(WORDS, k=rng.randint(1, 60)))
        n = rng.randint(1, 24)
        try:
            done = server.complete(prompt, n)["tokens_predicted"]
        except OSError as error:
            done, text = -1, repr(error)
        else:
            text = f"{done} tokens instead of {n}"
        with tally.lock:
            tally.requests += 1
            tally.tokens += max(done, 0)
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
    options = ("-v", "--prefetch", "--cache-size", f"{plan.cache_mib}M", "--ctx", "1024")
    try:
        with memory_limit(plan.limit) if plan.limit else nullcontext() as group:
            if group:
                assert inspect(model).routed_bytes > plan.limit
            wrap = group.wrap if group else list
            with serving(model, folder / "log", *options, wrap=wrap) as server:
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
                samples.append(server.metrics() | {"private": server.private_bytes()})
                planned = server.planned_bytes() + BESIDES
                code, seconds = server.stop()
            assert not (group and group.oom_kills())
    finally:
        model.unlink()
    print(f"{tally.requests} requests, {tally.tokens} tokens, ended in {seconds:.1f} s")
    print(
        "private MiB:",
        *(int(sample["private"]) // MIB for sample in samples[:: len(samples) // 10 or 1]),
    )
    print(f"planned {planned // MIB} MiB; {samples[-1]}")
    assert tally.errors == []
    assert code == 0
    assert seconds < QUICKLY
    check_memory([int(sample["private"]) for sample in samples], planned)
    check_counters(samples, plan)
    assert samples[-1]["tokens_predicted_total"] == tally.tokens
    return tally


def check_memory(private: list[int], planned: int) -> None:
    """Private memory stays within what was allocated at the start, and does not creep."""
    assert max(private) <= planned
    early = max(private[: max(1, len(private) // 5)])
    assert max(private) <= early + DRIFT


def check_counters(samples: list[dict[str, float]], plan: Soak) -> None:
    """Counters only grow, and all of them move; the cache keeps its size between passes."""
    counters = [name for name in samples[0] if name.startswith("expert_") and "_total" in name]
    for name in counters:
        values = [sample[name] for sample in samples]
        assert values == sorted(values), name
    last = samples[-1]
    for kind in ("slices_routed", "hits", "misses", "hinted", "hint_bytes", "evicted", "predicted"):
        assert last[f"expert_{kind}_total"] > 0, kind
    routed = last["expert_hits_total"] + last["expert_misses_total"]
    assert routed == last["expert_slices_routed_total"]
    assert last["expert_resident_bytes"] <= plan.cache_mib * MIB


def test_twenty_seconds(tmp_path: Path) -> None:
    assert soak(tmp_path, SHORT).requests > CLIENTS


@pytest.mark.full
def test_under_a_memory_limit(tmp_path: Path) -> None:
    assert soak(tmp_path, LONG).requests > CLIENTS
