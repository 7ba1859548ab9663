"""The AMX trap: some compilers turn the tile set-up into a program that dies with SIGILL.

gcc 12.2 with optimisation drops the stores that fill the 64-byte tile palette, because its
intrinsic claims to read only 8 bytes of it. On a CPU with AMX a native build of llama.cpp then
dies at its first quantised matrix product. So before building, a small program that fills a
palette in the same manner is compiled and run; where it fails, the build goes without AMX.
"""

import hashlib
import json
import tempfile
from pathlib import Path

from swapmoe import paths
from swapmoe.run import CommandFailed, capture
from swapmoe.toolchain import Toolchain, build_env, cpu_flags

DISABLE_FLAGS = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
FLAGS = ("-std=c++17", "-O2", "-march=native")

ABSENT = "absent"
WORKS = "works"
DISABLED = "disabled"
"""What a build does about AMX: nothing to do, left on, turned off."""

PROGRAM = """\
#include <cstdint>
#include <cstdio>
#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

struct palette {
    std::uint8_t id = 0, first_row = 0, unused[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};

// Not inlined: the stores are dropped only where the palette dies with the function.
__attribute__((noinline)) static void configure() {
    alignas(64) palette p = {};
    p.id = 1;
    p.rows[0] = 16; p.row_bytes[0] = 64;
    p.rows[1] = 16; p.row_bytes[1] = 64;
    p.rows[2] = 16; p.row_bytes[2] = 64;
    _tile_loadconfig(&p);
}

int main(int argc, char **) {
#if defined(__linux__)
    if (syscall(SYS_arch_prctl, 0x1023 /* ask for */, 18 /* tile data */) != 0) {
        std::puts("denied");
        return 0;
    }
#endif
    static std::int8_t a[16 * 64], b[16 * 64];
    static std::int32_t sums[16 * 16];
    for (int i = 0; i < 16 * 64; i++) { a[i] = (std::int8_t) argc; b[i] = 2; }
    configure();
    _tile_zero(0);
    _tile_loadd(1, a, 64);
    _tile_loadd(2, b, 64);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums, 64);
    _tile_release();
    for (std::int32_t sum : sums) {
        if (sum != 128 * argc) { std::puts("wrong"); return 1; }
    }
    std::puts("works");
    return 0;
}
#else
int main() { std::puts("absent"); return 0; }
#endif
"""


def probe(tools: Toolchain) -> str:
    """`ABSENT`, `WORKS` or `DISABLED` for a native build with this compiler on this CPU.

    The answer is kept in the cache for as long as compiler, CPU flags and program are the same.
    """
    if not any(flag.startswith("amx") for flag in cpu_flags()):
        return ABSENT
    known = _cache_file(tools)
    try:
        verdict = json.loads(known.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        verdict = None
    if verdict not in (ABSENT, WORKS, DISABLED):
        verdict = _compile_and_run(tools)
        remember(tools, verdict)
    return str(verdict)


def remember(tools: Toolchain, verdict: str) -> None:
    """Keep a verdict, also one that only the built binary could give."""
    paths.atomic_write_text(_cache_file(tools), json.dumps(verdict))


def _cache_file(tools: Toolchain) -> Path:
    parts = [str(tools.cxx), tools.compiler, *cpu_flags(), *FLAGS, PROGRAM]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return paths.cache_dir() / "probes" / f"amx-{key}.json"


def _compile_and_run(tools: Toolchain) -> str:
    with tempfile.TemporaryDirectory(prefix="swapmoe-") as folder:
        source = Path(folder) / "amx.cpp"
        source.write_text(PROGRAM, encoding="utf-8")
        program = source.with_suffix(".bin")
        try:
            capture([tools.cxx, *FLAGS, source, "-o", program], env=build_env(), timeout=120)
        except CommandFailed:
            return ABSENT  # no such flags or intrinsics: the build cannot use AMX either
        done = capture([program], env=build_env(), check=False, timeout=30)
    said = done.stdout.strip() if done.returncode == 0 else "died"
    return {"works": WORKS, "absent": ABSENT}.get(said, DISABLED)
