"""CMake for one tree: which options it has, what to pass, when an old cache is stale, compiling."""

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from swapmoe import run
from swapmoe.errors import BuildError
from swapmoe.toolchain import Toolchain, build_env

GENERATOR = "Ninja"
NINJA_STATUS = "[%f/%t] "
UNUSED = "Manually-specified variables were not used by the project"

_FILES = ("CMakeLists.txt", "*/CMakeLists.txt", "*/*/CMakeLists.txt", "cmake/*.cmake")
_STEP = re.compile(r"\[(\d+)/(\d+)\] ")
_KILLED = re.compile(
    r"\bKilled\b|killed by signal 9|signal terminated program|virtual memory exhausted"
    r"|[Cc]annot allocate memory|[Oo]ut of memory|std::bad_alloc"
)
_DISK_FULL = "No space left on device"

Definitions = dict[str, str]


@dataclass(frozen=True)
class Wanted:
    """A wish: the first of `names` the tree knows gets `value`; none known means left out."""

    names: tuple[str, ...]
    value: str


def switch(on: bool) -> str:
    """CMake's words for a boolean."""
    return "ON" if on else "OFF"


def resolve(source: Path, wanted: Iterable[Wanted]) -> Definitions:
    """The definitions this tree understands: its own CMake files are asked for each name."""
    text = "\n".join(
        path.read_text(encoding="utf-8", errors="replace")
        for pattern in _FILES
        for path in sorted(source.glob(pattern))
    )
    found: Definitions = {}
    for wish in wanted:
        for name in wish.names:
            declared = rf"(?:\boption\s*\(\s*|\bset\s*\(\s*|\bDEFINED\s+){re.escape(name)}\b"
            if name.startswith("CMAKE_") or re.search(declared, text):
                found[name] = wish.value
                break
    return found


def clear_stale(build: Path, source: Path, tools: Toolchain) -> str:
    """Remove a CMake cache that belongs to something else; returns why, or "" when it is good."""
    cache = build / "CMakeCache.txt"
    try:
        text = cache.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    facts = dict(re.findall(r"^([A-Za-z_]\w*):\w+=(.*)$", text, re.MULTILINE))

    def moved(key: str, wanted: Path) -> bool:
        return key in facts and Path(facts[key]).resolve() != wanted.resolve()

    reason = ""
    if facts.get("CMAKE_GENERATOR", GENERATOR) != GENERATOR:
        reason = f"it was made for {facts['CMAKE_GENERATOR']}, not {GENERATOR}"
    elif moved("CMAKE_CACHEFILE_DIR", build):
        reason = f"the folder was moved from {facts['CMAKE_CACHEFILE_DIR']}"
    elif moved("CMAKE_HOME_DIRECTORY", source):
        reason = f"it belongs to other sources: {facts['CMAKE_HOME_DIRECTORY']}"
    elif moved("CMAKE_CXX_COMPILER", tools.cxx):
        reason = f"it used another compiler: {facts['CMAKE_CXX_COMPILER']}"
    elif moved("CMAKE_MAKE_PROGRAM", tools.ninja):
        reason = f"it used another Ninja: {facts['CMAKE_MAKE_PROGRAM']}"
    if reason:
        for name in ("CMakeCache.txt", "build.ninja", ".ninja_deps", ".ninja_log"):
            (build / name).unlink(missing_ok=True)
        shutil.rmtree(build / "CMakeFiles", ignore_errors=True)
    return reason


def configure(
    tools: Toolchain, source: Path, build: Path, definitions: Definitions, log: Path
) -> list[str]:
    """Run CMake's configure step; returns names it did not use. Raises `BuildError`."""
    build.mkdir(parents=True, exist_ok=True)
    argv: list[str | Path] = [tools.cmake, "-S", source, "-B", build, "-G", GENERATOR]
    programs = {
        "CMAKE_MAKE_PROGRAM": tools.ninja,
        "CMAKE_C_COMPILER": tools.cc,
        "CMAKE_CXX_COMPILER": tools.cxx,
    }
    argv += [f"-D{name}={value}" for name, value in (programs | definitions).items()]
    code = run.stream(argv, env=build_env(), log=log)
    if code != 0:
        raise failure("CMake could not configure llama.cpp", code, log)
    return _unused(log.read_text(encoding="utf-8", errors="replace"))


def _unused(text: str) -> list[str]:
    _, found, rest = text.partition(UNUSED)
    if not found:
        return []
    block = rest.partition("\n\n\n")[0]
    return re.findall(r"^\s+([A-Za-z_]\w*)\s*$", block, re.MULTILINE)


def count_steps(tools: Toolchain, build: Path, targets: Sequence[str]) -> int:
    """How many steps Ninja still has to do; 0 when it cannot say."""
    done = run.capture(
        [tools.ninja, "-C", build, "-n", *targets],
        env=build_env(NINJA_STATUS=NINJA_STATUS),
        check=False,
        timeout=120,
    )
    return max((int(total) for _, total in _STEP.findall(done.stdout)), default=0)


def targets_like(tools: Toolchain, build: Path, prefix: str) -> list[str]:
    """Names of the build's targets that start with `prefix`."""
    done = run.capture([tools.ninja, "-C", build, "-t", "targets", "all"], env=build_env())
    return sorted(re.findall(rf"^({re.escape(prefix)}[\w-]*): phony", done.stdout, re.MULTILINE))


def compile_targets(
    tools: Toolchain,
    build: Path,
    targets: Sequence[str],
    jobs: int,
    log: Path,
    on_step: Callable[[int, int], None],
) -> None:
    """Compile; `on_step(done, total)` follows Ninja's own counter. Raises `BuildError`."""

    def on_line(line: str) -> None:
        if step := _STEP.match(line):
            on_step(int(step[1]), int(step[2]))

    argv: list[str | Path] = [tools.cmake, "--build", build, "--parallel", str(jobs), "--target"]
    code = run.stream(
        [*argv, *targets], env=build_env(NINJA_STATUS=NINJA_STATUS), log=log, on_line=on_line
    )
    if code != 0:
        raise failure("llama.cpp did not compile", code, log, jobs)


def failure(what: str, code: int, log: Path, jobs: int = 1) -> BuildError:
    """The error for a failed step, with the log's last lines and what they mean."""
    tail = run.tail_of(log)
    text = "\n".join(tail)
    hint = f"read {log}; then run the same command again, it continues where it stopped"
    if _DISK_FULL in text:
        what += ": the disk is full"
        hint = f"free some space under {log.parent.parent}, then run the same command again"
    elif code in (-9, 137) or _KILLED.search(text):
        what += ": the compiler was killed, most likely for want of memory"
        hint = f"swapmoe build --jobs {max(1, jobs // 2)}"
        if jobs == 1:
            hint = "free some memory or add swap, then run the same command again"
    return BuildError(what, evidence=[f"exit code {code}, log: {log}", *tail], hint=hint)
