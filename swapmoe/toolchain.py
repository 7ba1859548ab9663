"""Compiler, CMake and Ninja: which ones, are they good enough, how many jobs fit."""

import os
import platform
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from swapmoe.errors import ToolError
from swapmoe.run import CommandFailed, capture, clean_env

JOB_BYTES = 2 * 1024**3
"""Memory one compiler may need at its peak: llama.cpp's server sources come near it."""

DEFAULT_CMAKE_MINIMUM = (3, 14)
DROPPED_ENV = ("GIT_", "CMAKE_", "MAKE", "NINJA_", "LLAMA_", "GGML_", "HF_")
"""Variables that would steer a build from outside; the build's options are the only ones."""

_PAIRS = (("cc", "c++"), ("gcc", "g++"), ("clang", "clang++"))

_FILESYSTEM_PROGRAM = """\
#include <filesystem>
#include <iostream>
#include <optional>
#include <string_view>

int main() {
    std::optional<std::filesystem::path> here = std::filesystem::current_path();
    if (std::string_view name = "x"; here && std::filesystem::exists(*here / name)) {
        std::cout << here->string();
    }
    return 0;
}
"""


@dataclass(frozen=True)
class Toolchain:
    """The programs a build uses. The compiler text is the first line of its `--version`."""

    cmake: Path
    cmake_version: str
    ninja: Path
    cc: Path
    cxx: Path
    compiler: str


def build_env(**extra: str) -> dict[str, str]:
    """The environment of build programs: this one without anything that steers builds."""
    return clean_env(extra, drop_prefixes=DROPPED_ENV)


def user_flags(variable: str) -> str:
    """The user's CFLAGS, CXXFLAGS or LDFLAGS, which CMake would take from the environment."""
    return os.environ.get(variable, "").strip()


def find(source: Path) -> Toolchain:
    """Find every program. Raises `ToolError` naming what is missing and how to install it."""
    cmake, version = find_cmake(_cmake_minimum(source))
    ninja = find_ninja()
    cc, cxx = find_compilers()
    return Toolchain(cmake, version, ninja, cc, cxx, version_line(cxx) or "unknown version")


def version_line(program: Path) -> str:
    """The first line of what a program says to `--version`; "" when it says nothing."""
    said = capture([program, "--version"], env=build_env(), check=False, timeout=60).stdout
    return said.strip().partition("\n")[0].strip()


def _cmake_minimum(source: Path) -> tuple[int, int]:
    try:
        text = (source / "CMakeLists.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return DEFAULT_CMAKE_MINIMUM
    match = re.search(r"cmake_minimum_required\s*\(\s*VERSION\s+(\d+)\.(\d+)", text, re.IGNORECASE)
    return (int(match[1]), int(match[2])) if match else DEFAULT_CMAKE_MINIMUM


def find_cmake(minimum: tuple[int, int] = DEFAULT_CMAKE_MINIMUM) -> tuple[Path, str]:
    """CMake and its version. Raises `ToolError` when there is none that is new enough."""
    seen: list[str] = []
    for path in _candidates("cmake"):
        try:
            text = capture([path, "--version"], env=build_env(), timeout=60).stdout
        except (CommandFailed, ToolError) as error:
            seen.append(f"{path}: does not run: {error.message}")
            continue
        match = re.search(r"version (\d+)\.(\d+)\S*", text)
        if match and (int(match[1]), int(match[2])) >= minimum:
            return path, match[0].removeprefix("version ")
        seen.append(f"{path}: {match[0] if match else 'no version line'}")
    wanted = ".".join(map(str, minimum))
    raise ToolError(
        f"CMake {wanted} or newer is needed" + ("; what is here is too old" if seen else ""),
        evidence=seen or ["cmake is neither on PATH nor beside this Python"],
        hint=_install_hint("cmake"),
    )


def find_ninja() -> Path:
    """Ninja. Raises `ToolError` when none works."""
    for path in _candidates("ninja", "ninja-build"):
        if capture([path, "--version"], env=build_env(), check=False, timeout=60).returncode == 0:
            return path
    raise ToolError(
        "Ninja is needed to build llama.cpp",
        evidence=["no working ninja on PATH or beside this Python"],
        hint=_install_hint("ninja"),
    )


def _candidates(*names: str) -> list[Path]:
    """Programs of these names: on PATH first, then scripts that wheels put beside this Python."""
    beside = str(Path(sys.executable).parent)
    found = [shutil.which(name, path=where) for where in (None, beside) for name in names]
    return list(dict.fromkeys(Path(path) for path in found if path))


def _install_hint(program: str) -> str:
    return f"{sys.executable} -m pip install {program}   (or your system's {program} package)"


def find_compilers() -> tuple[Path, Path]:
    """CC and CXX where set, else the first complete pair on PATH."""
    chosen = os.environ.get("CC"), os.environ.get("CXX")
    pairs = [(chosen[0] or "cc", chosen[1] or "c++")] if any(chosen) else _PAIRS
    for pair in pairs:
        found_c, found_cxx = (shutil.which(name) for name in pair)
        if found_c and found_cxx:
            return Path(found_c), Path(found_cxx)
    system = platform.system()
    hint = {
        "Darwin": "xcode-select --install",
        "Windows": "install LLVM-MinGW or Build Tools, and put the compilers on PATH",
    }.get(system, "sudo apt install g++   (or your system's C++ compiler package)")
    raise ToolError(
        "a C and a C++17 compiler are needed",
        evidence=[f"not found: {' + '.join(pair)}" for pair in pairs],
        hint=hint,
    )


def check_filesystem(tools: Toolchain) -> None:
    """Compile and link a few lines of C++17. Raises `ToolError` with the compiler's words."""
    with tempfile.TemporaryDirectory(prefix="swapmoe-") as folder:
        source = Path(folder) / "filesystem.cpp"
        source.write_text(_FILESYSTEM_PROGRAM, encoding="utf-8")
        try:
            capture(
                [tools.cxx, "-std=c++17", source, "-o", source.with_suffix(".bin")],
                env=build_env(),
                timeout=120,
            )
        except CommandFailed as error:
            raise ToolError(
                "the C++ compiler cannot build a C++17 program that uses <filesystem>",
                evidence=[f"compiler: {tools.compiler} ({tools.cxx})", *error.tail[-10:]],
                hint="use GCC 9, Clang 9 or newer (CC=... CXX=... swapmoe build), "
                "or skip this check with --force",
            ) from None


def default_jobs() -> int:
    """Parallel compilers: as many as cores and available memory allow, at least one."""
    return max(1, min(cores(), memory_available() // JOB_BYTES))


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_available() -> int:
    """Available bytes: the system's, or a container's memory limit when that is lower."""
    available = int(psutil.virtual_memory().available)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (Path("/sys/fs/cgroup") / name).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdecimal():
            available = min(available, int(text))
    return available


def cpu_flags() -> tuple[str, ...]:
    """Feature flags of this CPU, sorted; empty where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return tuple(sorted(set(match[1].split()))) if match else ()
