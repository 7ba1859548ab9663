"""Compiles logits.cpp against a build, and runs it: all logits of fixed token ids, as bytes."""

import re
from dataclasses import dataclass
from pathlib import Path

from swapmoe.run import capture, clean_env

SOURCE = Path(__file__).with_name("logits.cpp")
TIMEOUT = 300.0

_STATISTICS = re.compile(r"expert_stream: statistics: (.*)")
_TRACKING = re.compile(r"expert_stream: tracking (\d+) routed expert slices")


@dataclass(frozen=True)
class Logits:
    """What one run wrote, and the log of the library."""

    values: bytes
    log: str

    @property
    def slices(self) -> int:
        """Slices that the engine tracked; 0 when the model does not stream."""
        found = _TRACKING.search(self.log)
        return int(found[1]) if found else 0

    @property
    def statistics(self) -> dict[str, int]:
        """The engine's counters at the end; empty when the model does not stream."""
        found = _STATISTICS.search(self.log)
        pairs = (item.split("=") for item in found[1].split()) if found else ()
        return {key: int(value) for key, value in pairs}


@dataclass(frozen=True)
class LogitsProgram:
    """The program, linked to the libraries of one build."""

    path: Path

    def run(self, model: Path, **options: str | int) -> Logits:
        """Run a model; raises CommandFailed when it does not load or decode."""
        saved = self.path.with_suffix(".bin")
        saved.unlink(missing_ok=True)
        # Waiting threads must not spin: tests share the machine.
        env = clean_env({"OMP_WAIT_POLICY": "passive"}, drop_prefixes=("LLAMA_",))
        words = [f"{key}={value}" for key, value in options.items()]
        done = capture([self.path, model, saved, *words], env=env, timeout=TIMEOUT)
        return Logits(saved.read_bytes(), done.stderr)


def compile_against(bin_dir: Path, source: Path, target: Path) -> Path:
    """Compile with the compiler, headers and libraries of the build that `bin_dir` belongs to."""
    cache = (bin_dir.resolve().parent / "CMakeCache.txt").read_text()

    def cached(name: str) -> Path:
        found = re.search(rf"^{name}:\w+=(.+)$", cache, re.MULTILINE)
        assert found, f"{name} is not in the cache of {bin_dir}"
        return Path(found[1])

    tree = cached("CMAKE_HOME_DIRECTORY")
    headers = (f"-I{tree / 'include'}", f"-I{tree / 'ggml' / 'include'}")
    libraries = (f"-L{bin_dir}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{bin_dir}")
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror")
    capture(
        [cached("CMAKE_CXX_COMPILER"), *flags, *headers, source, "-o", target, *libraries],
        timeout=TIMEOUT,
    )
    return target


def compile_logits(bin_dir: Path, target: Path) -> LogitsProgram:
    """Compile logits.cpp against a build."""
    return LogitsProgram(compile_against(bin_dir, SOURCE, target))
