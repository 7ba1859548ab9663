"""The pin as it came, built like the patched one: what results and speed are compared with."""

import hashlib
import shutil
from pathlib import Path

from swapmoe import amx, cmake, console, gitrepo, paths, toolchain, tree, upstream
from swapmoe.cmake import Wanted
from swapmoe.pins import Pin
from swapmoe.receipts import Receipt

TARGETS = ("llama-completion", "llama-perplexity", "llama-bench")


def build_unpatched(pin: Pin, patched: Receipt) -> Path:
    """Return the folder with TARGETS of the pristine source, compiling what is not there yet.

    Raises what `upstream.ensure_source` raises, ToolError and BuildError.
    """
    folder = paths.cache_dir() / "unpatched" / pin.tag
    source = folder / "source"
    with paths.lock(folder):
        if not source.exists():
            _check_out(upstream.ensure_source(pin), source)
        tools = toolchain.find(source)
        definitions = _definitions(source, patched)
        built_for = repr((definitions, tools.compiler, patched.cpu_flags))
        key = hashlib.sha256(built_for.encode()).hexdigest()[:16]
        build, log = folder / key, folder / f"{key}.log"
        console.say(f"unpatched {pin.tag}, to compare with: {', '.join(TARGETS)}; log: {log}")
        cmake.clear_stale(build, source, tools)
        cmake.configure(tools, source, build, definitions, log)
        jobs = toolchain.default_jobs()
        cmake.compile_targets(tools, build, TARGETS, jobs, log, lambda _done, _total: None)
    return build / "bin"


def _check_out(repository: Path, target: Path) -> None:
    partial = target.with_name("source.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with gitrepo.open_checkout(repository).scratch() as repo:
        repo.run("read-tree", tree.PRISTINE_REF)
        repo.run("checkout-index", "--all", f"--prefix={partial}/")
    partial.rename(target)


def _definitions(source: Path, patched: Receipt) -> cmake.Definitions:
    flags = " ".join(amx.DISABLE_FLAGS) if patched.amx == amx.DISABLED else ""
    wanted = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_C_FLAGS": f"{patched.inputs['CFLAGS']} {flags}".strip(),
        "CMAKE_CXX_FLAGS": f"{patched.inputs['CXXFLAGS']} {flags}".strip(),
        "GGML_NATIVE": cmake.switch(patched.native),
        "LLAMA_BUILD_UI": "OFF",
        "LLAMA_USE_PREBUILT_UI": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_OPENSSL": "OFF",
        "LLAMA_BUILD_NUMBER": patched.tag.removeprefix("b"),
    }
    return cmake.resolve(source, [Wanted((name,), value) for name, value in wanted.items()])
