"""``port check --build``: the merged series is applied, proven and compiled; gates decide."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from swapmoe import apply, build, demo, port_check
from swapmoe.errors import BuildError, ToolError, UsageError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin
from tests.support.ports import LATER, later, replace
from tests.support.upstream import OVERLAY, Mini

MERGED = replace("src/graph.cpp", "logits = gate(ctx)", "logits = gate(ctx, 1)")


@dataclass
class Builder:
    """Takes the place of the compiler: applies and proves the series, then does as told."""

    folder: Path
    error: Exception | None = None
    test: str = ""
    built: list[Path] = field(default_factory=list)
    files: dict[str, None] = field(default_factory=dict)
    version_line: str = "version: 20"
    slices: int = 24

    def ensure_built(self, pin: Pin, options: build.BuildOptions, source: str) -> "Builder":
        assert options.tests
        self.built.append(apply.ensure_patched(pin, source).path)
        if self.error:
            raise self.error
        if self.test:
            self.files = {"test-expert-stream": None}
            program = self.folder / "test-expert-stream"
            program.write_text(f"#!{sys.executable}\n{self.test}\n")
            program.chmod(0o755)
        return self

    def program(self, name: str) -> Path:
        return self.folder / name

    def demo(self, *_: object) -> "Builder":
        return self


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder(tmp_path)
    monkeypatch.setattr(build, "ensure_built", made.ensure_built)
    monkeypatch.setattr(demo, "demo", made.demo)
    return made


def test_what_is_built_is_the_merged_series(mini: Mini, pin: Pin, builder: Builder) -> None:
    later(mini, MERGED)
    builder.test = "print('fine')"
    report = port_check.check(pin, LATER, "auto", build=True)
    assert report.counts == {"unchanged": 3, "merged": 1}
    assert report.problems == ()
    (tree,) = builder.built
    text = (tree / "src/graph.cpp").read_text()
    assert "gate(ctx, 1)" in text
    assert "llama_expert_observe" in text
    assert (tree / OVERLAY).is_file()
    assert GitRepo(tree).run("log", "-1", "--format=%s").text == "swapmoe: graph: observe top k"


def test_a_compiler_error_breaks_the_hooks_it_names(mini: Mini, pin: Pin, builder: Builder) -> None:
    later(mini, MERGED)
    builder.error = BuildError("compiling failed", evidence=["src/graph.cpp:5: error: no gate"])
    report = port_check.check(pin, LATER, "auto", build=True)
    assert [hook.file for hook in report.hooks if hook.verdict == "broken"] == ["src/graph.cpp"]
    assert report.problems == ("broken: compiling failed", "src/graph.cpp:5: error: no gate")
    assert not report.clean


def test_a_failing_unit_test_is_a_problem(mini: Mini, pin: Pin, builder: Builder) -> None:
    later(mini, lambda top: None)
    builder.test = "raise SystemExit('slices lost')"
    report = port_check.check(pin, LATER, "auto", build=True)
    assert report.problems == ("broken: test-expert-stream fails", "slices lost")


def test_nothing_is_built_where_hooks_have_no_place(mini: Mini, pin: Pin, builder: Builder) -> None:
    later(mini, replace("src/graph.cpp", "ids = top_k(logits)", "ids = top_k(logits, 1)"))
    assert port_check.check(pin, LATER, "auto", build=True).counts["conflict"] == 1
    assert builder.built == []


def test_a_missing_tool_is_no_verdict(mini: Mini, pin: Pin, builder: Builder) -> None:
    later(mini, MERGED)
    builder.error = ToolError("program not found: cmake")
    with pytest.raises(ToolError):
        port_check.check(pin, LATER, "auto", build=True)


def test_a_target_without_a_build_number_is_refused(mini: Mini, pin: Pin, builder: Builder) -> None:
    commit = later(mini, MERGED)
    with pytest.raises(UsageError, match="needs a build tag"):
        port_check.check(pin, commit, "auto", build=True)
