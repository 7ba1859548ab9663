"""Programs, pins and builds, for `swapmoe doctor`."""

import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from swapmoe import installed, paths, pins, receipts, toolchain
from swapmoe.errors import SwapmoeError
from swapmoe.findings import Finding
from swapmoe.pins import Pin
from swapmoe.receipts import Receipt

_INSTALLERS = {
    "apt-get": "sudo apt-get install {}",
    "dnf": "sudo dnf install {}",
    "pacman": "sudo pacman -S {}",
    "zypper": "sudo zypper install {}",
    "apk": "sudo apk add {}",
    "brew": "brew install {}",
    "winget": "winget install {}",
}
_PACKAGES = {
    "ninja": {"apt-get": "ninja-build", "dnf": "ninja-build", "winget": "Ninja-build.Ninja"},
    "compiler": {
        "apt-get": "g++",
        "dnf": "gcc-c++",
        "pacman": "gcc",
        "zypper": "gcc-c++",
        "apk": "g++",
        "brew": "gcc",
        "winget": "LLVM.LLVM",
    },
    "git": {"winget": "Git.Git"},
    "cmake": {"winget": "Kitware.CMake"},
}


def install_command(tool: str) -> str:
    """How this system installs a tool: git, cmake, ninja or compiler."""
    for program, command in _INSTALLERS.items():
        if shutil.which(program):
            return command.format(_PACKAGES[tool].get(program, tool))
    return f"install {tool} with your system's package manager"


def tools() -> list[Finding]:
    """The programs that fetching, patching and building need."""
    return [
        Finding("ok", "python", f"{platform.python_version()} ({sys.executable})"),
        _tool("git", _git),
        _tool("cmake", _cmake),
        _tool("ninja", _ninja),
        _tool("compiler", _compiler),
    ]


def _tool(name: str, find: Callable[[], str]) -> Finding:
    try:
        return Finding("ok", name, find())
    except SwapmoeError as error:
        text = "; ".join([error.message, *error.evidence])
        return Finding("missing", name, text, install_command(name))


def _git() -> str:
    path = shutil.which("git")
    if path is None:
        raise SwapmoeError("not found")
    return f"{toolchain.version_line(Path(path)).removeprefix('git version ')} ({path})"


def _cmake() -> str:
    path, version = toolchain.find_cmake()
    return f"{version} ({path})"


def _ninja() -> str:
    path = toolchain.find_ninja()
    return f"{toolchain.version_line(path)} ({path})"


def _compiler() -> str:
    cc, cxx = toolchain.find_compilers()
    return f"{toolchain.version_line(cxx)} ({cc}, {cxx})"


def builds(name: str | None) -> list[Finding]:
    """The pin, the source that was fetched for it, and what was built from that."""
    try:
        pin = pins.load(name)
    except SwapmoeError as error:
        return [Finding("bad", "pin", "; ".join([error.message, *error.evidence]), error.hint)]
    found = [_pin(pin), _source(pin)]
    receipt = receipts.latest(pin.tag)
    if receipt is None:
        return [*found, Finding("note", "build", "none yet", "swapmoe build")]
    return [*found, *_build(pin, receipt)]


def _pin(pin: Pin) -> Finding:
    others = ", ".join(tag for tag in pins.known_tags() if tag != pin.tag)
    text = f"llama.cpp {pin.tag}, commit {pin.commit}"
    return Finding("ok", "pin", text + (f"; with --pin also {others}" if others else ""))


def _source(pin: Pin) -> Finding:
    from swapmoe.gitrepo import open_checkout
    from swapmoe.tree import inspect

    path = paths.source_dir(pin.manifest.upstream.tag)
    if not path.exists():
        return Finding("note", "source", "not fetched yet", "swapmoe fetch")
    try:
        status = inspect(pin, open_checkout(path))
    except SwapmoeError as error:
        return Finding("warn", "source", f"{path}: {error.message}", error.hint)
    sound = status.state in ("applied", "clean") and not status.problems
    text = "; ".join([f"{status.state}: {path}", *status.problems])
    return Finding("ok" if sound else "warn", "source", text, "" if sound else "swapmoe build")


def _build(pin: Pin, receipt: Receipt) -> list[Finding]:
    kind = "for this very CPU" if receipt.native else "for any CPU of its kind"
    found = [Finding("ok", "build", f"{receipt.version_line}, {kind}: {receipt.bin_dir}")]
    if receipt.tree_id != pin.manifest.series.tree:
        text = "the build is older than the patches"
        found.append(Finding("warn", "receipt", text, "swapmoe build"))
    elif changed := receipt.changed_files():
        text = f"gone or altered since the build: {', '.join(changed)}"
        found.append(Finding("warn", "receipt", text, "swapmoe build"))
    else:
        text = f"{len(receipt.files)} files are those that were built; smoke test: {receipt.smoke}"
        found.append(Finding("ok", "receipt", text))
    if absent := installed.absent_flags(receipt):
        text = f"the build was made for a CPU with {', '.join(absent)}, which this one lacks"
        found.append(Finding("warn", "cpu features", text, "swapmoe build"))
    elif receipt.cpu_flags:
        text = f"all {len(receipt.cpu_flags)} that the build was made with are here"
        found.append(Finding("ok", "cpu features", text))
    return found
