"""Compile the patched llama.cpp once per (sources, compiler, options), proved by a receipt."""

import errno
import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swapmoe import amx, apply, cmake, console, paths, receipts, smoke, toolchain
from swapmoe.cmake import Wanted, switch
from swapmoe.errors import BuildError, UsageError
from swapmoe.pins import Pin
from swapmoe.receipts import Receipt
from swapmoe.toolchain import Toolchain

TARGETS = (
    "llama-cli",
    "llama-server",
    "llama-completion",
    "llama-bench",
    "llama-perplexity",
    "llama-quantize",
)
TEST_PREFIX = "test-expert"
"""The C++ unit tests of the overlay; upstream's own tests have other names."""

PROGRESS_LINES = 10


@dataclass(frozen=True)
class BuildOptions:
    """What to build. `jobs` None = as many as cores and memory allow."""

    jobs: int | None = None
    portable: bool = False
    with_ui: bool = False
    debug: bool = False
    sanitize: Literal["thread", "address"] | None = None
    targets: tuple[str, ...] = ()
    tests: bool = False
    force: bool = False


@dataclass(frozen=True)
class _Plan:
    """One build that is about to be made or found."""

    pin: Pin
    options: BuildOptions
    tools: Toolchain
    source: Path
    amx: str
    inputs: dict[str, str]

    @property
    def key(self) -> str:
        text = json.dumps({k: v for k, v in self.inputs.items() if k != "cmake"}, sort_keys=True)
        return f"{self.pin.tag}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def folder(self) -> Path:
        return paths.build_dir(self.key)


def ensure_built(pin: Pin, options: BuildOptions, source: str = "auto") -> Receipt:
    """Bring the build of a pin up to date and return its receipt; nothing is done twice.

    `source` says where llama.cpp may come from, as for `upstream.ensure_source`.

    Raises `ToolError` (a program is missing), `BuildError`, and what `apply.ensure_patched` raises.
    """
    if any(target.startswith("-") or not target.strip() for target in options.targets):
        raise UsageError("a --target is the name of a CMake target, e.g. --target llama-bench")
    tree = apply.ensure_patched(pin, source)
    tools = toolchain.find(tree.path)
    verdict = amx.ABSENT if options.portable else amx.probe(tools)
    try:
        return _ensure(_plan(pin, options, tools, tree, verdict))
    except smoke.IllegalInstruction as error:
        if options.portable or verdict == amx.DISABLED:
            raise
        console.note(f"{error.message}; building once more without AMX")
        amx.remember(tools, amx.DISABLED)
        return _ensure(_plan(pin, options, tools, tree, amx.DISABLED))


def _plan(
    pin: Pin, options: BuildOptions, tools: Toolchain, tree: apply.PatchedTree, verdict: str
) -> _Plan:
    inputs = {
        "upstream commit": pin.commit,
        "patch series": pin.manifest.series.digest,
        "tree id": tree.tree_id,
        "compiler": f"{tools.compiler} ({tools.cxx})",
        "cmake": tools.cmake_version,
        "portable": switch(options.portable),
        "CPU flags": "any" if options.portable else " ".join(toolchain.cpu_flags()),
        "AMX": verdict,
        "web UI": switch(options.with_ui),
        "debug": switch(options.debug),
        "sanitize": options.sanitize or "none",
        "CFLAGS": toolchain.user_flags("CFLAGS"),
        "CXXFLAGS": toolchain.user_flags("CXXFLAGS"),
        "LDFLAGS": toolchain.user_flags("LDFLAGS"),
        "system": f"{platform.system()} {platform.machine()}",
    }
    return _Plan(pin, options, tools, tree.path, verdict, inputs)


def _ensure(plan: _Plan) -> Receipt:
    with paths.lock(plan.folder), _disk_errors(plan.folder):
        old = receipts.read(plan.key)
        missing = _missing(plan, old) if old else ""
        if old and not missing and not plan.options.force:
            console.say(f"nothing changed: {old.version_line} in {old.bin_dir}")
            receipts.write(plan.folder, old)
            return old
        if old:
            console.say(f"building again: {missing or 'asked for by --force'}")
        elif previous := receipts.latest(plan.pin.tag):
            console.say(f"building: changed since the last build: {_changes(previous, plan)}")
        return _build(plan, old)


def _missing(plan: _Plan, receipt: Receipt) -> str:
    """Why a build with this receipt is not enough, or ""."""
    if changed := receipt.changed_files():
        return f"{', '.join(changed[:4])} gone or altered in {receipt.bin_dir}"
    if receipt.inputs != plan.inputs:
        return _changes(receipt, plan)
    wanted = plan.options.targets or TARGETS
    if absent := [target for target in wanted if target not in receipt.targets]:
        return f"{', '.join(absent)} not built yet"
    if plan.options.tests and not receipt.tests:
        return "unit tests not built yet"
    return ""


def _changes(previous: Receipt, plan: _Plan) -> str:
    names = [name for name, value in plan.inputs.items() if previous.inputs.get(name) != value]
    return ", ".join(names) or "nothing that is recorded"


def _build(plan: _Plan, old: Receipt | None) -> Receipt:
    options, tools = plan.options, plan.tools
    if not options.force:
        toolchain.check_filesystem(tools)
    receipts.drop(plan.folder)
    if old:
        for name in old.changed_files():  # Ninja would take an altered, newer file as done
            (old.bin_dir / name).unlink(missing_ok=True)
    if plan.amx == amx.DISABLED:
        console.note(
            "AMX is left out: programs that this compiler makes for it die with SIGILL on this CPU"
        )
    if options.with_ui:
        console.note("the web UI is built too; that may use node and the network")
    if reason := cmake.clear_stale(plan.folder, plan.source, tools):
        console.note(f"CMake's cache in {plan.folder} is not usable: {reason}; starting it afresh")
    started = time.monotonic()
    tests = options.tests or bool(old and old.tests)
    log = paths.logs_dir() / f"build-{plan.key}.log"
    console.say(f"configuring llama.cpp {plan.pin.tag} ({tools.compiler})")
    unused = cmake.configure(
        tools, plan.source, plan.folder, _definitions(plan, tests), log.with_suffix(".cmake.log")
    )
    if unused:
        console.note(f"CMake did not use: {', '.join(unused)}")
    wanted = [*(options.targets or TARGETS), *(old.targets if old else ())]
    if options.tests:
        wanted += cmake.targets_like(tools, plan.folder, TEST_PREFIX)
    targets = tuple(dict.fromkeys(wanted))
    _compile(plan, targets, log)
    return _finish(plan, targets, tests, time.monotonic() - started)


def _compile(plan: _Plan, targets: tuple[str, ...], log: Path) -> None:
    jobs = plan.options.jobs or toolchain.default_jobs()
    total = cmake.count_steps(plan.tools, plan.folder, targets)
    console.say(f"compiling {', '.join(targets)} with {jobs} job{'s' * (jobs > 1)}; log: {log}")
    with console.progress("compiling", total or None, unit="steps") as update:
        on_step = update_and_print(update)
        cmake.compile_targets(plan.tools, plan.folder, targets, jobs, log, on_step)


def update_and_print(update: Callable[[int], None]) -> Callable[[int, int], None]:
    """Ninja's counter for the progress bar, or as a line per tenth where there is no terminal."""
    printed = 0

    def on_step(done: int, total: int) -> None:
        nonlocal printed
        update(done)
        tenth = done * PROGRESS_LINES // max(1, total)
        if tenth > printed and not console.err().is_terminal:
            console.say(f"  [{done}/{total}]")
        printed = max(printed, tenth)

    return on_step


def _finish(plan: _Plan, targets: tuple[str, ...], tests: bool, seconds: float) -> Receipt:
    bin_dir = plan.folder / "bin"
    line = smoke.version_line(bin_dir, TARGETS)
    expected = (str(plan.pin.build_number), plan.pin.commit[:9])
    if any(target in TARGETS for target in targets) and not all(part in line for part in expected):
        raise BuildError(
            "the binaries do not say what they are",
            evidence=[f"version line: {line or 'none'}", f"expected in it: {', '.join(expected)}"],
            hint="swapmoe build --force",
        )
    sanitized = plan.options.sanitize is not None
    checked = "" if sanitized else smoke.smoke(bin_dir)
    receipt = Receipt(
        key=plan.key,
        tag=plan.pin.tag,
        inputs=plan.inputs,
        bin_dir=bin_dir,
        targets=targets,
        tests=tests,
        files=receipts.scan(bin_dir),
        version_line=line,
        native=not plan.options.portable,
        cpu_flags=() if plan.options.portable else toolchain.cpu_flags(),
        amx=plan.amx,
        smoke=checked or "not run",
        seconds=round(seconds, 1),
    )
    receipts.write(plan.folder, receipt)
    console.say(f"built {line or ', '.join(targets)} in {seconds:.0f} s: {bin_dir}")
    return receipt


def _definitions(plan: _Plan, tests: bool) -> cmake.Definitions:
    options, pin = plan.options, plan.pin
    wanted = [
        Wanted(("CMAKE_BUILD_TYPE",), "RelWithDebInfo" if options.debug else "Release"),
        Wanted(("LLAMA_BUILD_UI", "LLAMA_BUILD_WEBUI"), switch(options.with_ui)),
        Wanted(("LLAMA_USE_PREBUILT_UI", "LLAMA_USE_PREBUILT_WEBUI"), switch(options.with_ui)),
        Wanted(("LLAMA_BUILD_TOOLS",), "ON"),
        Wanted(("LLAMA_BUILD_SERVER",), "ON"),
        Wanted(("LLAMA_BUILD_EXAMPLES",), "OFF"),
        Wanted(("LLAMA_BUILD_APP",), "OFF"),
        Wanted(("LLAMA_BUILD_TESTS",), switch(tests)),
        Wanted(("LLAMA_OPENSSL", "LLAMA_CURL"), "OFF"),
        Wanted(("LLAMA_BUILD_NUMBER",), str(pin.build_number)),
        Wanted(("LLAMA_BUILD_COMMIT",), pin.commit[:9]),
        Wanted(("GGML_NATIVE",), switch(not options.portable)),
    ]
    for kind in ("THREAD", "ADDRESS"):
        on = (options.sanitize or "").upper() == kind
        wanted += [Wanted((f"{part}_SANITIZE_{kind}",), switch(on)) for part in ("LLAMA", "GGML")]
    # gcc's OpenMP runtime is not instrumented: every barrier would look like a race
    wanted.append(Wanted(("GGML_OPENMP",), switch(options.sanitize != "thread")))
    extra = " ".join(amx.DISABLE_FLAGS) if plan.amx == amx.DISABLED else ""
    for variable, name in (("CFLAGS", "CMAKE_C_FLAGS"), ("CXXFLAGS", "CMAKE_CXX_FLAGS")):
        wanted.append(Wanted((name,), f"{plan.inputs[variable]} {extra}".strip()))
    return cmake.resolve(plan.source, wanted)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turn a full disk into a `BuildError`; the receipt is written last, nothing is half done."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise BuildError(
            "the disk is full",
            evidence=[f"writing under {folder.parent}: {error.strerror}"],
            hint=f"free some space under {paths.cache_dir()}, then run the same command again",
        ) from None
