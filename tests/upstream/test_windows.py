"""The overlay's Windows side, compiled (not run) with mingw-w64 where that is installed."""

import shutil

import pytest

from swapmoe import apply
from swapmoe.run import capture
from tests.support.chosen_pin import chosen_pin

COMPILERS = ("x86_64-w64-mingw32-g++-posix", "x86_64-w64-mingw32-g++")
COMPILER = next((path for name in COMPILERS if (path := shutil.which(name))), None)
INCLUDES = ("include", "src", "ggml/include", "common", "vendor")


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(COMPILER is None, reason="mingw-w64 is not installed (g++-mingw-w64-x86-64)")
def test_overlay_compiles_for_windows() -> None:
    tree = apply.ensure_patched(chosen_pin()).path
    sources = [*sorted(tree.glob("src/llama-expert-*.cpp")), tree / "common/expert-stream-args.cpp"]
    assert len(sources) > 6
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-D_WIN32_WINNT=0x0A00", "-fsyntax-only"]
    for source in sources:
        includes = [f"-I{tree / folder}" for folder in INCLUDES]
        capture([str(COMPILER), *flags, *includes, source], timeout=600)
