"""The rows of the I/O benchmark: shapes of published models, and what is run on each."""

from dataclasses import dataclass, replace

from swapmoe.stream_bench import ENGINES, Engine, Task


@dataclass(frozen=True)
class Row:
    """A generated model shaped like a published one, on memory of file size / `ratio`."""

    preset: str
    published: str
    ratio: float
    is_like: str

    def limit(self, file_bytes: int) -> int:
        """Bytes of memory for a file of this size, page cache included."""
        return int(file_bytes / self.ratio)


ROWS = (
    Row(
        "35b-a3b-q4_k_m",
        "Qwen3.5-35B-A3B Q4_K_M",
        1.23,
        "10 of 40 layers; 256 experts, 8 used, of 1.77 MB (published 1.74): Q4_K",
    ),
    Row(
        "122b-a10b-q2_k",
        "Qwen3.5-122B-A10B Q2_K",
        2.66,
        "6 of 48 layers; 256 experts, 8 used, of 3.10 MB (published 3.22): Q2_K",
    ),
    Row(
        "minimax-iq1_m",
        "MiniMax-M2.7 IQ1_M",
        3.8,
        "5 of 62 layers; 256 experts, 8 used, of 3.61 MB (published 3.64): gate and up IQ1_M, "
        "down Q2_K",
    ),
    Row(
        "deepseek-v4-iq1_m",
        "DeepSeek-V4-Flash IQ1_M",
        5.06,
        "4 of 43 layers, none hash-routed; 256 experts, 6 used, of 6.42 MB (published 6.71): gate "
        "and up IQ1_M, down Q2_K",
    ),
)

DECODE = Task(tokens=16, is_prompt=False, repeats=9, cold=6)
"""The cold ones fill the cache; while it fills, `direct` waits for pages of new memory as well."""
SHORT_PROMPT = Task(tokens=512, is_prompt=True)
LONG_PROMPT = Task(tokens=2048, is_prompt=True)
IN_MEMORY = (DECODE, replace(SHORT_PROMPT, repeats=2, cold=1), LONG_PROMPT)
"""What tells the speed of computing. A long prompt needs no second run: the first was one."""
RESIDENT = Task(tokens=32, is_prompt=False, repeats=3, cold=1, depth=512)
"""Decoding after a prompt that has touched the experts."""
_OFTEN = ("fault", "direct", "direct+prefetch")
_MOST = ("fault", "mmap", "direct", "direct+prefetch")


@dataclass(frozen=True)
class Step:
    """One engine on one task, in the rounds before `rounds`."""

    engine: Engine
    task: Task
    rounds: int


def plan(rounds: int, *, quick: bool = False) -> list[Step]:
    """Return what to run on a model: what takes long, and matters less, in the first round only."""
    if quick:
        chosen = [engine for engine in ENGINES if not engine.prefetch]
        return [Step(engine, task, 1) for task in (DECODE, SHORT_PROMPT) for engine in chosen]
    return [
        *(Step(engine, DECODE, rounds if engine.name in _MOST else 1) for engine in ENGINES),
        *(Step(engine, SHORT_PROMPT, rounds if engine.name in _OFTEN else 1) for engine in ENGINES),
        *(Step(engine, LONG_PROMPT, 1) for engine in ENGINES if engine.name in _MOST),
    ]


def in_round(steps: list[Step], number: int) -> list[Step]:
    """Return the steps of a round (from 0) in their order: every other round goes backwards."""
    wanted = [step for step in steps if number < step.rounds]
    return wanted if number % 2 == 0 else wanted[::-1]
