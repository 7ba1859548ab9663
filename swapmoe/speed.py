"""How fast a model will run: reads against compute, as ranges with their sources.

    decode  = 1 / (compute + demand x miss rate / bandwidth)     reads and compute in turn
    decode  = 1 / max(compute, demand x miss rate / bandwidth)   all reads hidden behind compute
    prefill = n / (n x compute + touched x miss rate / bandwidth)     for n tokens in a batch
    touched = expert bytes x (1 - (1 - used / experts) ^ n)

The first formula gives the low end, the second the high end. Once a run of the model was measured
here, its own compute time and waiting time take the place of the assumptions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from swapmoe import hitcurve, weights
from swapmoe.gguf_info import ModelFacts
from swapmoe.history import Disk, Hits, Run

GB = 10**9
TINY = 1e-9
"""Seconds: nothing takes less, also for a header of zeros."""
CORE_BYTES_PER_SECOND = (1.5e9, 4.0e9)
"""Assumed: weights that one core multiplies with in decoding. Measured on two machines: 2.1 GB/s
(2 cores of a server, Q4_0, not repacked) and 2.8 GB/s (8 cores of a laptop with DDR4)."""
MEMORY_BYTES_PER_SECOND = 60e9
"""Assumed: what all cores together get from memory at best."""
LAYER_SECONDS = (20e-6, 200e-6)
"""Assumed: what each layer takes besides, however small it is."""
CORE_FLOPS = (10e9, 40e9)
"""Assumed: multiplications and additions of one core in prompts. Measured: 32e9 (Q4_0, AVX2)."""
DISK_BYTES_PER_SECOND = (1.0e9, 3.0e9)
"""Assumed: a solid state disk read in slices, many at once."""
PAGE_CACHE_SHARE = (0.6, 1.0)
"""Assumed: what the page cache leaves of a disk's bandwidth. Measured: 0.8 to 1."""
MEASURED_SPREAD = 0.15
"""Runs of the same model differ by about this share."""


@dataclass(frozen=True)
class Range:
    """Two ends, and where they come from: given, measured, published or assumed."""

    low: float
    high: float
    source: str

    def times(self, low: float, high: float) -> "Range":
        """Each end times a factor."""
        return Range(self.low * low, self.high * high, self.source)


@dataclass(frozen=True)
class Speed:
    """Expected tokens per second, and what they were worked out from.

    `compute` is seconds per token, `bandwidth` bytes per second, `misses` a share. `reads` are
    bytes of experts that a token needs; `touched` those that a micro-batch of a prompt needs.
    `curve` tells how often experts are found, however much of them is in memory.
    """

    decode: Range
    prefill: Range
    compute: Range
    bandwidth: Range
    misses: Range
    reads: int
    touched: int
    curve: hitcurve.Curve | hitcurve.Measured

    @property
    def expected(self) -> float:
        """The middle of the decoding range, as ratios go."""
        return math.sqrt(self.decode.low * self.decode.high)

    def held_after(self, tokens: int, room: int, routed: int) -> int:
        """Bytes of experts that a cache of `room` bytes, empty at first, holds after some tokens.

        Each token adds what it does not find; `routed` are the bytes of all experts.
        """
        held = 0.0
        for _ in range(tokens):
            low, high = self.curve.hits(held / max(1, routed))
            held = min(room, held + self.reads * (1 - (low + high) / 2))
        return int(held)


@dataclass(frozen=True)
class Machine:
    """What is known about the machine: cores, bandwidth when given, and what was measured.

    `runs` and `hits` are those of the model itself, `others` the runs of any model.
    """

    cores: int
    disk_rate: float | None = None
    disks: Sequence[Disk] = ()
    runs: Sequence[Run] = ()
    others: Sequence[Run] = ()
    hits: Sequence[Hits] = ()


def active_bytes(facts: ModelFacts) -> int:
    """Bytes of weights that one token is multiplied with."""
    return weights.split(facts).dense + weights.demand(facts)


def estimate(
    facts: ModelFacts, machine: Machine, *, budget: int, engine: str, ubatch: int
) -> Speed:
    """The speed with `budget` bytes of experts in memory; `engine` is direct or mmap."""
    routed = weights.split(facts).routed
    reads = weights.demand(facts)
    bandwidth = _bandwidth(facts, machine, engine)
    curve = _curve(facts, machine, routed)
    misses = _misses(curve, budget, routed, reads)
    compute = _compute(facts, machine)
    waits = bool(_with_stalls(machine))
    slowest = compute.high + reads * misses.high / bandwidth.low
    fastest = reads * misses.low / bandwidth.high
    fastest = compute.low + fastest if waits else max(compute.low, fastest)
    source = "measured" if compute.source.startswith("measured") and waits else "estimated"
    touched = int(routed * _touched_share(facts, ubatch))
    return Speed(
        decode=Range(1 / max(slowest, TINY), 1 / max(fastest, TINY), source),
        prefill=_prefill(facts, machine, bandwidth, touched, ubatch, budget / max(1, routed)),
        compute=compute,
        bandwidth=bandwidth,
        misses=misses,
        reads=reads,
        touched=touched,
        curve=curve,
    )


def _with_stalls(machine: Machine) -> list[Run]:
    return [run for run in machine.runs if run.stall and run.bytes_per_token]


def _bandwidth(facts: ModelFacts, machine: Machine, engine: str) -> Range:
    if machine.disk_rate:
        given = Range(machine.disk_rate, machine.disk_rate, "given")
        return given.times(*PAGE_CACHE_SHARE) if engine == "mmap" else given
    rates = [
        run.bytes_per_token / run.stall for run in machine.runs if run.stall and run.bytes_per_token
    ]
    if rates:
        source = "measured: bytes read by the time waited for them, in runs of this model"
        found = _around(rates, source)
    elif machine.disks:
        wanted = max((tensor.slice_bytes for tensor in facts.routed), default=1)
        near = min(machine.disks, key=lambda disk: abs(disk.slice_bytes - wanted))
        rates = [disk.rate for disk in machine.disks if disk.slice_bytes == near.slice_bytes]
        found = _around([max(rates)], "measured: probe of this disk")
    else:
        found = Range(*DISK_BYTES_PER_SECOND, "assumed: a solid state disk")
    return found.times(*PAGE_CACHE_SHARE) if engine == "mmap" else found


def _misses(
    curve: hitcurve.Curve | hitcurve.Measured, budget: int, routed: int, reads: int
) -> Range:
    if budget >= routed:
        return Range(0.0, 0.0, "all experts stay in memory")
    if budget < reads:
        return Range(1.0, 1.0, "below one token's demand nothing is found again")
    low, high = curve.hits(budget / routed)
    return Range(1 - high, 1 - low, curve.source)


def _curve(facts: ModelFacts, machine: Machine, routed: int) -> hitcurve.Curve | hitcurve.Measured:
    skews = [
        found
        for run in machine.runs
        if run.hit_rate is not None
        and (run.served or not machine.hits)
        and (found := hitcurve.skew(run.budget / max(1, routed), run.hit_rate)) is not None
    ]
    if skews:
        return hitcurve.measured(skews, len(skews))
    if machine.hits:
        return hitcurve.Measured([(each.share, each.hit_rate) for each in machine.hits])
    return hitcurve.published(facts.architecture)


def _compute(facts: ModelFacts, machine: Machine) -> Range:
    """Seconds per token without waiting for reads."""
    active = active_bytes(facts)
    own = [_seconds(run) for run in machine.runs if _has_compute(run)]
    if own:
        return _around(own, "measured: runs of this model, without waiting for reads")
    rates = [run.active_bytes / _seconds(run) for run in machine.others if _has_compute(run)]
    if rates:
        rate = median(rates)
        source = "measured: runs of other models, by bytes of weights"
        return Range(active / (1.4 * rate), active / (rate / 1.4), source)
    low, high = (
        min(machine.cores * rate, MEMORY_BYTES_PER_SECOND) for rate in CORE_BYTES_PER_SECOND
    )
    source = f"assumed: {low / GB:.0f} to {high / GB:.0f} GB/s of weights on {machine.cores} cores"
    quick, slow = (facts.trunk_layers * seconds for seconds in LAYER_SECONDS)
    return Range(active / high + quick, active / low + slow, source)


def _has_compute(run: Run) -> bool:
    return run.stall is not None and run.decode_rate > 0 and run.stall * run.decode_rate < 0.95


def _seconds(run: Run) -> float:
    return 1 / run.decode_rate - (run.stall or 0.0)


def _around(values: list[float], source: str) -> Range:
    middle = median(values)
    return Range(middle * (1 - MEASURED_SPREAD), middle * (1 + MEASURED_SPREAD), source)


def _touched_share(facts: ModelFacts, tokens: int) -> float:
    """Share of a layer's experts that some of `tokens` tokens choose, if choices were even."""
    if not facts.expert_count:
        return 0.0
    return 1.0 - (1.0 - facts.expert_used_count / facts.expert_count) ** tokens


def _prefill(
    facts: ModelFacts, machine: Machine, bandwidth: Range, touched: int, ubatch: int, share: float
) -> Range:
    flops = 2 * weights.used_parameters(facts)
    slow, fast = (machine.cores * rate for rate in CORE_FLOPS)
    compute = Range(flops / fast, flops / slow, "assumed")
    best, worst = max(0.0, 1 - share), 0.0 if share >= 1 else 1.0
    slowest = ubatch * compute.high + touched * worst / bandwidth.low
    fastest = max(ubatch * compute.low, touched * best / bandwidth.high)
    return Range(ubatch / max(slowest, TINY), ubatch / max(fastest, TINY), "estimated")
