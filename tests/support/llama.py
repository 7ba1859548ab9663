"""Drives the built programs: same prompt, seed and threads for whatever is compared."""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from swapmoe.run import Completed, capture, clean_env

STREAMING = ("--expert-streaming", "--no-warmup")
# The library's own info lines, which the tools hide at their default verbosity.
LIBRARY_LOG = ("-lv", "4")
TEXT = (
    "The quick brown fox jumps over the lazy dog; 12 zebras (and one ox) quietly watched it. " * 8
)
TIMEOUT = 100.0

_STATISTICS = re.compile(r"expert_stream: statistics: (.*)")
_REPACK = re.compile(r"CPU_REPACK model buffer size =\s*([\d.]+) MiB")


def streaming(io: str) -> tuple[str, ...]:
    """Return the flags for streaming with an I/O engine."""
    return (*STREAMING, "--expert-io", io)


@dataclass(frozen=True)
class Statistics:
    """The engine's line at exit, as far as the tests look at it; sizes in bytes."""

    passes: int
    routed: int
    hinted: int
    hint_bytes: int
    hint_errors: int
    read_bytes: int
    major_faults: int


def statistics(log: str) -> Statistics:
    """Return the one statistics line of a log."""
    (line,) = _STATISTICS.findall(log)
    values = dict(item.split("=") for item in line.split())
    return Statistics(**{field.name: int(values[field.name]) for field in fields(Statistics)})


def repacked_mib(log: str) -> float:
    """Return the MiB of weights that were copied into repacking buffers."""
    return sum(float(size) for size in _REPACK.findall(log))


@dataclass(frozen=True)
class Session:
    """The tokens of prompt and answer, and the state after them: keys and values of all layers."""

    tokens: tuple[int, ...]
    state: bytes


@dataclass(frozen=True)
class Llama:
    """The programs of one build."""

    bin_dir: Path

    def _run(
        self, program: str, *argv: str | Path, check: bool, env: Mapping[str, str] | None = None
    ) -> Completed:
        # Waiting threads must not spin: tests share the machine.
        own = {"OMP_WAIT_POLICY": "passive", **(env or {})}
        full = clean_env(own, drop_prefixes=("LLAMA_ARG_",))
        return capture([self.bin_dir / program, *argv], env=full, timeout=TIMEOUT, check=check)

    def complete(
        self,
        model: Path,
        *flags: str,
        prompt: str = TEXT[:89],
        n: int = 48,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run llama-completion greedily; stdout holds prompt and answer, stderr the log."""
        fixed = ("--temp", "0", "--seed", "1", "-t", "2", "-c", "512", "-no-cnv", *LIBRARY_LOG)
        argv = ("-m", model, "-p", prompt, "-n", str(n), *fixed, *flags)
        return self._run("llama-completion", *argv, check=check, env=env)

    def session(
        self, model: Path, work: Path, *flags: str, env: Mapping[str, str] | None = None
    ) -> Session:
        """Return what llama-completion leaves in its session file.

        Not its output: its logger drops what is still queued when the program ends.
        """
        saved = work / "session.bin"
        saved.unlink(missing_ok=True)
        self.complete(model, *flags, "--prompt-cache", str(saved), "--prompt-cache-all", env=env)
        data = saved.read_bytes()
        _magic, _version, count = struct.unpack_from("<3I", data)
        return Session(struct.unpack_from(f"<{count}i", data, 12), data[12 + 4 * count :])

    def logits(self, model: Path, work: Path, *flags: str) -> bytes:
        """Return all logits of TEXT as llama-perplexity saves them (16 bits each)."""
        text, saved = work / "text.txt", work / "logits.bin"
        text.write_text(TEXT)
        saved.unlink(missing_ok=True)
        fixed = ("-c", "64", "-b", "64", "-t", "2", "--chunks", "4", "--save-all-logits")
        self._run("llama-perplexity", "-m", model, "-f", text, *fixed, saved, *flags, check=True)
        return saved.read_bytes()
