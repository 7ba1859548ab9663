"""Run the built binaries once on a tiny quantised model, so that a broken build is never kept."""

import re
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path

from swapmoe import paths, run
from swapmoe.errors import BuildError

ILLEGAL = -signal.SIGILL if hasattr(signal, "SIGILL") else None
TIMEOUT_SECONDS = 300.0


class IllegalInstruction(BuildError):
    """The binary dies with SIGILL on this CPU."""


def smoke(bin_dir: Path) -> str:
    """Run a prompt batch and a few tokens; returns the program used, "" when there is none.

    Raises `IllegalInstruction`, or `BuildError` when the program fails in another way.
    """
    program = next(
        (bin_dir / name for name in ("llama-bench", "llama-completion") if _exists(bin_dir, name)),
        None,
    )
    if program is None:
        return ""
    argv: list[str | Path] = [program, "-m", tiny_model(), "-t", "2"]
    if program.name.startswith("llama-bench"):
        argv += ["-p", "64", "-n", "4", "-r", "1"]
    else:
        argv += ["-p", "x" * 64, "-n", "4", "-no-cnv", "--no-warmup"]
    with tempfile.TemporaryDirectory(prefix="swapmoe-") as empty:
        done = run.capture(
            argv, cwd=Path(empty), env=child_env(), check=False, timeout=TIMEOUT_SECONDS
        )
    if done.returncode == 0:
        return program.name
    tail = (done.stdout + done.stderr).splitlines()[-run.TAIL_LINES :]
    if ILLEGAL is not None and done.returncode in (ILLEGAL, 128 - ILLEGAL):
        raise IllegalInstruction(
            f"the new {program.name} dies of an illegal instruction (SIGILL) on this CPU",
            evidence=[f"command: {run.shell_quote(done.argv)}", *tail],
            hint="swapmoe build --portable, or use another compiler (CC=... CXX=...)",
        )
    raise BuildError(
        f"the new {program.name} fails on a tiny model (exit code {done.returncode})",
        evidence=[f"command: {run.shell_quote(done.argv)}", *tail],
        hint="swapmoe patch verify; if that is clean, report this with the lines above",
    )


def tiny_model() -> Path:
    """A Q4_0 Mixture-of-Experts model of a few hundred KB, written once into the cache."""
    from swapmoe.models import PRESETS, ensure_model

    return ensure_model(PRESETS["tiny"], paths.cache_dir() / "models", "tiny")


def version_line(bin_dir: Path, programs: Iterable[str]) -> str:
    """The `version:` line of the first of `programs` that prints one, else ""."""
    for name in programs:
        if not _exists(bin_dir, name):
            continue
        done = run.capture([bin_dir / name, "--version"], env=child_env(), check=False, timeout=60)
        if match := re.search(r"^version: .*$", done.stdout + done.stderr, re.MULTILINE):
            return match[0].strip()
    return ""


def child_env() -> dict[str, str]:
    """The environment for checks: nothing of the user's that would change what they check."""
    return run.clean_env(drop_prefixes=("GIT_", "LLAMA_", "GGML_"))


def _exists(bin_dir: Path, name: str) -> bool:
    return (bin_dir / name).is_file()
