"""The real compiler, CMake and Ninja on a project of a few lines."""

from pathlib import Path

import pytest

from swapmoe import amx, apply, toolchain
from swapmoe.build import TARGETS, BuildOptions, ensure_built
from swapmoe.errors import BuildError
from swapmoe.pins import Pin
from swapmoe.toolchain import cpu_flags
from tests.support.building import CMAKE_LISTS, make_pin

PROGRAM = """\
#include <cstdio>
int main() {
    std::fprintf(stderr, "version: %d (%s)\\n", NUMBER, COMMIT);
    return 0;
}
"""
PROJECT = f"""\
{CMAKE_LISTS}
project(small CXX C)
option(GGML_NATIVE "native" ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${{CMAKE_BINARY_DIR}}/bin)
foreach(name {" ".join(TARGETS)})
    add_executable(${{name}} main.cpp)
    target_compile_definitions(${{name}} PRIVATE
        NUMBER=${{LLAMA_BUILD_NUMBER}} COMMIT="${{LLAMA_BUILD_COMMIT}}")
endforeach()
"""


@pytest.fixture
def pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pin:
    source = tmp_path / "a source" / "naïve"
    source.mkdir(parents=True)
    (source / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
    (source / "main.cpp").write_text(PROGRAM, encoding="utf-8")
    patched = apply.PatchedTree(source, "a" * 40, "c" * 40)
    monkeypatch.setattr(apply, "ensure_patched", lambda _pin, _source="auto": patched)
    return make_pin(tmp_path)


def test_builds_and_then_does_nothing(pin: Pin, capsys: pytest.CaptureFixture[str]) -> None:
    receipt = ensure_built(pin, BuildOptions(jobs=2))
    assert receipt.version_line == "version: 10235 (221f0f635)"
    assert set(receipt.binaries) == set(TARGETS)
    said = capsys.readouterr().err
    assert "did not use" not in said
    assert "[12/12]" in said
    assert ensure_built(pin, BuildOptions()) == receipt
    assert "nothing changed" in capsys.readouterr().err


def test_an_altered_binary_is_linked_again(pin: Pin) -> None:
    receipt = ensure_built(pin, BuildOptions())
    receipt.program("llama-cli").write_bytes(b"not a program")
    again = ensure_built(pin, BuildOptions())
    assert again.binaries["llama-cli"] == receipt.binaries["llama-cli"]


def test_a_compile_error_is_shown(pin: Pin, tmp_path: Path) -> None:
    (tmp_path / "a source" / "naïve" / "main.cpp").write_text("int main() { return nowhere; }")
    with pytest.raises(BuildError) as caught:
        ensure_built(pin, BuildOptions())
    assert any("nowhere" in line for line in caught.value.evidence)


def test_the_amx_probe_decides(tmp_path: Path) -> None:
    verdict = amx.probe(toolchain.find(tmp_path))
    if not any(flag.startswith("amx") for flag in cpu_flags()):
        assert verdict == amx.ABSENT
    else:
        assert verdict in (amx.ABSENT, amx.WORKS, amx.DISABLED)


def test_the_filesystem_check_passes(tmp_path: Path) -> None:
    toolchain.check_filesystem(toolchain.find(tmp_path))
