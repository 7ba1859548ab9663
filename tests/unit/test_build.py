"""Building with fake tools: what is passed, what is redone, what is said, what is left behind."""

import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from swapmoe import amx, build, cmake, paths, receipts, toolchain
from swapmoe.build import BuildOptions, ensure_built
from swapmoe.errors import BuildError, ToolError, UsageError
from swapmoe.receipts import Receipt
from tests.support.building import Workshop, make_pin


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path, monkeypatch)
    made.cpu("avx2", "fma")
    return made


def definitions(receipt: Receipt) -> dict[str, str]:
    found: dict[str, str] = json.loads((receipt.bin_dir.parent / "definitions.json").read_text())
    return found


def test_configures_with_what_the_tree_knows(shop: Workshop) -> None:
    receipt = ensure_built(shop.pin, BuildOptions(jobs=3))
    passed = definitions(receipt)
    assert passed["CMAKE_BUILD_TYPE"] == "Release"
    assert passed["LLAMA_BUILD_UI"] == passed["LLAMA_USE_PREBUILT_UI"] == "OFF"
    assert passed["LLAMA_BUILD_TESTS"] == passed["LLAMA_BUILD_EXAMPLES"] == "OFF"
    assert passed["LLAMA_OPENSSL"] == "OFF"
    assert passed["LLAMA_BUILD_NUMBER"] == "10235"
    assert passed["LLAMA_BUILD_COMMIT"] == "221f0f635"
    assert passed["GGML_NATIVE"] == "ON"
    assert "LLAMA_CURL" not in passed
    assert "LLAMA_BUILD_APP" not in passed
    *_, compile_call = shop.tools.calls("cmake")
    assert compile_call[2:] == ["--parallel", "3", "--target", *build.TARGETS]


def test_receipt_holds_what_went_in(shop: Workshop) -> None:
    receipt = ensure_built(shop.pin, BuildOptions())
    assert set(receipt.binaries) == set(build.TARGETS)
    assert receipt.version_line == "version: 10235 (221f0f635)"
    assert receipt.tree_id == "a" * 40
    assert receipt.inputs["upstream commit"] == shop.pin.commit
    assert receipt.inputs["compiler"].startswith("c++ (Fake) 12.2.0")
    assert receipt.cpu_flags == ("avx2", "fma")
    assert receipt.amx == amx.ABSENT
    assert receipt.smoke == "llama-bench"
    assert receipts.latest("b10235") == receipt


def test_second_build_does_nothing(shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    first = ensure_built(shop.pin, BuildOptions())
    shop.tools.forget_calls()
    started = time.monotonic()
    assert ensure_built(shop.pin, BuildOptions()) == first
    assert time.monotonic() - started < 3
    assert "nothing changed" in capsys.readouterr().err
    assert all(call == ["--version"] for call in shop.tools.calls("cmake"))


def test_names_what_changed(shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    first = ensure_built(shop.pin, BuildOptions())
    shop.tree_id = "b" * 40
    shop.tools.set(compiler="c++ (Fake) 13.1.0")
    second = ensure_built(make_pin(shop.root, shop.tree_id), BuildOptions())
    assert second.bin_dir != first.bin_dir
    assert "changed since the last build: tree id, compiler" in capsys.readouterr().err


def test_an_altered_binary_is_built_again(
    shop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt = ensure_built(shop.pin, BuildOptions())
    program = receipt.program("llama-cli")
    program.write_text("#!/bin/sh\necho not this one\n")
    again = ensure_built(shop.pin, BuildOptions())
    assert "llama-cli gone or altered" in capsys.readouterr().err
    assert again.binaries == receipt.binaries


def test_more_targets_and_tests_join_the_same_build(shop: Workshop) -> None:
    shop.tools.set(targets=["all", "test-expert-stream", "test-backend-ops"])
    some = ensure_built(shop.pin, BuildOptions(targets=("llama-bench",)))
    assert set(some.binaries) == {"llama-bench"}
    tests = ensure_built(shop.pin, BuildOptions(targets=("llama-cli",), tests=True))
    assert set(tests.binaries) == {"llama-bench", "llama-cli", "test-expert-stream"}
    assert definitions(tests)["LLAMA_BUILD_TESTS"] == "ON"
    full = ensure_built(shop.pin, BuildOptions())
    assert set(full.binaries) == {*build.TARGETS, "test-expert-stream"}
    assert definitions(full)["LLAMA_BUILD_TESTS"] == "ON"


def test_portable_sanitize_and_debug_are_builds_of_their_own(shop: Workshop) -> None:
    plain = ensure_built(shop.pin, BuildOptions())
    portable = ensure_built(shop.pin, BuildOptions(portable=True))
    thread = ensure_built(shop.pin, BuildOptions(sanitize="thread", debug=True))
    assert len({plain.bin_dir, portable.bin_dir, thread.bin_dir}) == 3
    assert definitions(portable)["GGML_NATIVE"] == "OFF"
    assert portable.cpu_flags == ()
    assert definitions(thread)["LLAMA_SANITIZE_THREAD"] == "ON"
    assert definitions(thread)["CMAKE_BUILD_TYPE"] == "RelWithDebInfo"
    assert receipts.latest("b10235") == portable


def test_environment_cannot_steer_the_build(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CMAKE_GENERATOR", "NINJA_STATUS", "MAKEFLAGS", "LLAMA_CURL", "GIT_DIR"):
        monkeypatch.setenv(name, "x")
    steering = ("CMAKE_", "NINJA_", "MAKE", "LLAMA_", "GIT_")
    assert not [name for name in toolchain.build_env() if name.startswith(steering)]
    monkeypatch.setenv("CXXFLAGS", "-fno-plt")
    assert "-fno-plt" in definitions(ensure_built(shop.pin, BuildOptions()))["CMAKE_CXX_FLAGS"]


def test_a_target_must_be_a_name(shop: Workshop) -> None:
    with pytest.raises(UsageError):
        ensure_built(shop.pin, BuildOptions(targets=("--clean-first",)))


class TestAmx:
    def test_a_compiler_that_gets_it_right_keeps_amx(self, shop: Workshop) -> None:
        shop.cpu("amx_tile", "avx2")
        receipt = ensure_built(shop.pin, BuildOptions())
        assert receipt.amx == amx.WORKS
        assert "amx" not in definitions(receipt)["CMAKE_CXX_FLAGS"]

    @pytest.mark.parametrize("says", ["dies", "wrong answer", "denied"])
    def test_a_compiler_that_gets_it_wrong_builds_without(
        self, shop: Workshop, capsys: pytest.CaptureFixture[str], says: str
    ) -> None:
        shop.cpu("amx_tile", "avx2")
        shop.tools.set(amx=says)
        receipt = ensure_built(shop.pin, BuildOptions())
        assert receipt.amx == amx.DISABLED
        for name in ("CMAKE_C_FLAGS", "CMAKE_CXX_FLAGS"):
            assert definitions(receipt)[name] == " ".join(amx.DISABLE_FLAGS)
        assert capsys.readouterr().err.count("AMX is left out") == 1

    def test_the_verdict_is_kept(self, shop: Workshop) -> None:
        shop.cpu("amx_tile")
        shop.tools.set(amx="dies")
        tools = toolchain.find(shop.source)
        assert amx.probe(tools) == amx.DISABLED
        shop.tools.forget_calls()
        assert amx.probe(tools) == amx.DISABLED
        assert shop.tools.calls("c++") == []
        shop.tools.set(amx="works")
        assert amx.probe(replace(tools, compiler="another")) == amx.WORKS

    def test_no_amx_no_probe(self, shop: Workshop) -> None:
        tools = toolchain.find(shop.source)
        shop.tools.forget_calls()
        assert amx.probe(tools) == amx.ABSENT
        assert shop.tools.calls("c++") == []

    def test_a_binary_that_dies_is_built_once_more(
        self, shop: Workshop, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shop.cpu("amx_tile")
        shop.tools.set(bench_dies_with_amx=True)
        receipt = ensure_built(shop.pin, BuildOptions())
        assert receipt.amx == amx.DISABLED
        assert "building once more without AMX" in capsys.readouterr().err
        shop.tools.forget_calls()
        assert ensure_built(shop.pin, BuildOptions()) == receipt

    def test_a_binary_that_still_dies_is_not_delivered(self, shop: Workshop) -> None:
        shop.tools.set(bench_exit="SIGILL")
        with pytest.raises(BuildError, match="illegal instruction"):
            ensure_built(shop.pin, BuildOptions())
        assert receipts.latest("b10235") is None


class TestFailure:
    def test_compile_error_shows_the_end_of_the_log(self, shop: Workshop) -> None:
        shop.tools.set(compile_exit=1, compile_says="x.cpp:3: error: no such thing\nninja: stopped")
        with pytest.raises(BuildError) as caught:
            ensure_built(shop.pin, BuildOptions())
        text = "\n".join(caught.value.evidence)
        assert "no such thing" in text
        assert str(paths.logs_dir()) in text
        assert receipts.latest("b10235") is None

    def test_failure_after_a_good_build_leaves_no_receipt(self, shop: Workshop) -> None:
        ensure_built(shop.pin, BuildOptions())
        shop.tools.set(compile_exit=1)
        with pytest.raises(BuildError):
            ensure_built(shop.pin, BuildOptions(force=True))
        assert receipts.latest("b10235") is None
        shop.tools.set(compile_exit=0)
        assert ensure_built(shop.pin, BuildOptions()).version_line

    @pytest.mark.parametrize(
        "line",
        [
            "c++: fatal error: Killed signal terminated program cc1plus",
            "cc1plus: out of memory allocating 65536 bytes",
            "Killed",
        ],
    )
    def test_a_killed_compiler_is_recognised(self, shop: Workshop, line: str) -> None:
        shop.tools.set(compile_exit=1, compile_says=line)
        with pytest.raises(BuildError, match="compiler was killed") as caught:
            ensure_built(shop.pin, BuildOptions(jobs=8))
        assert caught.value.hint == "swapmoe build --jobs 4"

    def test_disk_full_while_compiling(self, shop: Workshop) -> None:
        shop.tools.set(compile_exit=1, compile_says="ar: x.a: No space left on device")
        with pytest.raises(BuildError, match="the disk is full"):
            ensure_built(shop.pin, BuildOptions())

    def test_disk_full_while_writing_the_receipt(
        self, shop: Workshop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(receipts, "write", full)
        with pytest.raises(BuildError, match="the disk is full"):
            ensure_built(shop.pin, BuildOptions())
        assert receipts.latest("b10235") is None

    def test_configure_error(self, shop: Workshop) -> None:
        shop.tools.set(configure_exit=1, configure_says="CMake Error: no")
        with pytest.raises(BuildError, match="could not configure"):
            ensure_built(shop.pin, BuildOptions())

    def test_wrong_version_line(self, shop: Workshop) -> None:
        shop.tools.set(version_line="version: 0 (unknown)")
        with pytest.raises(BuildError, match="do not say what they are") as caught:
            ensure_built(shop.pin, BuildOptions())
        assert "version: 0 (unknown)" in caught.value.evidence[0]


class TestTools:
    def test_everything_missing_is_named_with_its_cure(self, shop: Workshop) -> None:
        shop.only_tools()
        shop.tools.remove("cmake")
        with pytest.raises(ToolError, match=r"CMake 3\.14") as caught:
            toolchain.find(shop.source)
        assert "pip install cmake" in caught.value.hint

    def test_an_old_cmake_is_named(self, shop: Workshop) -> None:
        shop.only_tools()
        shop.tools.set(cmake_version="3.10.2")
        with pytest.raises(ToolError, match="too old") as caught:
            toolchain.find(shop.source)
        assert "3.10" in caught.value.evidence[0]

    def test_no_ninja(self, shop: Workshop) -> None:
        shop.only_tools()
        shop.tools.remove("ninja")
        with pytest.raises(ToolError, match="Ninja"):
            toolchain.find(shop.source)

    def test_no_compiler(self, shop: Workshop) -> None:
        shop.only_tools()
        shop.tools.remove("c++")
        with pytest.raises(ToolError, match=r"C\+\+17 compiler"):
            toolchain.find(shop.source)

    def test_the_chosen_compiler_must_exist(
        self, shop: Workshop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CXX", "no-such-compiler")
        with pytest.raises(ToolError) as caught:
            toolchain.find(shop.source)
        assert "no-such-compiler" in caught.value.evidence[0]

    def test_an_old_compiler_stops_before_the_build(self, shop: Workshop) -> None:
        shop.tools.set(cxx_exit=1, compiler="g++ 8.5")
        with pytest.raises(ToolError, match="<filesystem>") as caught:
            ensure_built(shop.pin, BuildOptions())
        assert "g++ 8.5" in caught.value.evidence[0]
        assert ensure_built(shop.pin, BuildOptions(force=True)).version_line

    def test_jobs_follow_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(toolchain, "cores", lambda: 8)
        for available, jobs in ((1, 1), (5 * 1024**3, 2), (64 * 1024**3, 8)):
            monkeypatch.setattr(toolchain, "memory_available", lambda a=available: a)
            assert toolchain.default_jobs() == jobs


class TestStaleCache:
    @pytest.mark.parametrize(
        ("key", "value", "why"),
        [
            ("CMAKE_GENERATOR", "Unix Makefiles", "Unix Makefiles"),
            ("CMAKE_CACHEFILE_DIR", "/elsewhere", "moved from /elsewhere"),
            ("CMAKE_HOME_DIRECTORY", "/other", "other sources"),
            ("CMAKE_CXX_COMPILER", "/usr/bin/other++", "another compiler"),
        ],
    )
    def test_is_cleared_and_said(self, shop: Workshop, key: str, value: str, why: str) -> None:
        folder = ensure_built(shop.pin, BuildOptions()).bin_dir.parent
        tools = toolchain.find(shop.source)
        assert cmake.clear_stale(folder, shop.source, tools) == ""
        cache = folder / "CMakeCache.txt"
        lines = [line for line in cache.read_text().splitlines() if not line.startswith(key + ":")]
        cache.write_text("\n".join([*lines, f"{key}:STRING={value}"]))
        assert why in cmake.clear_stale(folder, shop.source, tools)
        assert not cache.exists()


def test_unused_definitions_are_surfaced(
    shop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.tools.set(
        configure_says="CMake Warning:\n  Manually-specified variables were not used by the "
        "project:\n\n    LLAMA_OPENSSL\n\n\n-- Build files"
    )
    ensure_built(shop.pin, BuildOptions())
    assert "did not use: LLAMA_OPENSSL" in capsys.readouterr().err


def test_a_receipt_from_another_version_is_no_receipt(shop: Workshop) -> None:
    receipt = ensure_built(shop.pin, BuildOptions())
    folder = paths.build_dir(receipt.key)
    data = json.loads(paths.receipt_path(folder).read_text())
    paths.write_receipt(folder, data | {"surprise": 1})
    assert receipts.read(receipt.key) is None
    paths.write_receipt(folder, data | {"files": []})
    assert receipts.read(receipt.key) is None
