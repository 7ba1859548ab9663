"""How often an expert that a token needs is in memory already, before anything was measured here.

Published curves for least-recently-used caches of trained models follow, within a few points,

    hit rate = (share of the experts in memory) ^ skew

with a skew between 0.13 (few experts do most of the work) and 0.4; routing without any preference
would have 1. The measured points behind the numbers, as share of experts -> hit rate:

- GLM-5.3-Flash, gnasher's README: .08 .50, .17 .62, .33 .76, .56 .85, .69 .895
- Qwen3.6-35B, BigMoeOnEdge's documents (of about 20 GB): .10 .56, .15 .65, .27 .845, .37 .90; a
  replay of another project at .30: .80 to .87
- Qwen3-30B, BigMoeOnEdge (of 17.3 GB): .12 .53, .23 .76, .62 .84
- gpt-oss-120b, BigMoeOnEdge (of 57 GB): .035 .27
- Gemma-4-26B, oMLX's documents: .125 .45, .25 .67, .50 .89
- DeepSeek-V4-Flash, Crow's threads and ds4: .09 .69, .13 .73, .16 .75, .23 .81; derived .10 .60
- Qwen3.8-Flash-Next, llama.cpp threads (replays): .125 .67, .25 .81
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

LEAST_SKEW, MOST_SKEW = 0.02, 1.2
MISS_SPREAD = 0.15
"""Assumed: how much the misses of one text differ from those of another."""


@dataclass(frozen=True)
class Curve:
    """A range of skews: the lower one hits more often. `source` says where it is from."""

    low: float
    high: float
    source: str

    def hits(self, share: float) -> tuple[float, float]:
        """Lowest and highest hit rate with this share (0 to 1) of the experts in memory."""
        share = min(1.0, max(0.0, share))
        return share**self.high, share**self.low


_FAMILIES = {
    "qwen3moe": (0.19, 0.37, "Qwen3-30B"),
    "qwen3vlmoe": (0.19, 0.37, "Qwen3-30B"),
    "qwen35moe": (0.11, 0.26, "Qwen3.6-35B"),
    "qwen3next": (0.15, 0.26, "Qwen3.8-Flash-Next and Qwen3.6-35B"),
    "gpt-oss": (0.30, 0.45, "gpt-oss-120b, one point"),
    "gemma4": (0.16, 0.39, "Gemma-4-26B"),
    "deepseek4": (0.14, 0.23, "DeepSeek-V4-Flash"),
    "glm4moe": (0.24, 0.31, "GLM-5.3-Flash"),
    "glm-dsa": (0.24, 0.31, "GLM-5.3-Flash"),
}


def published(architecture: str) -> Curve:
    """The curve of an architecture's relatives, or the range over all published ones."""
    if found := _FAMILIES.get(architecture):
        return Curve(found[0], found[1], f"published hit rates of {found[2]}")
    return Curve(0.13, 0.4, "published hit rates of seven other models")


@dataclass(frozen=True)
class Measured:
    """Points (share, hit rate) with rising shares, straight lines between them."""

    points: Sequence[tuple[float, float]]
    source: str = "measured: hit rates of this model, by what of it had been read"

    def hits(self, share: float) -> tuple[float, float]:
        """Lowest and highest hit rate; MISS_SPREAD of the misses to either side."""
        share = min(1.0, max(0.0, share))
        known = [(0.0, 0.0), *self.points, (1.0, 1.0)]
        for (left, low), (right, high) in pairwise(known):
            if share <= right:
                at = (share - left) / (right - left) if right > left else 1.0
                misses = 1 - (low + at * (high - low))
                break
        return max(0.0, 1 - misses * (1 + MISS_SPREAD)), 1 - misses * (1 - MISS_SPREAD)


def skew(share: float, hit_rate: float) -> float | None:
    """The skew that a measurement shows; None where (next to) all or nothing was hit."""
    if not (0 < share < 0.98 and 0.01 < hit_rate < 0.995):
        return None
    return min(MOST_SKEW, max(LEAST_SKEW, math.log(hit_rate) / math.log(share)))


def measured(skews: list[float], count: int) -> Curve:
    """A curve through measurements of this machine, a fifth to either side of their range."""
    source = f"{count} measured run{'s' if count != 1 else ''} of this model"
    return Curve(min(skews) * 0.8, max(skews) * 1.2, source)
