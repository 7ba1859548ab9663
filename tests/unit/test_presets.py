"""What a launch takes from the plan, and when it refuses to start."""

from pathlib import Path

import pytest

from swapmoe import gguf_info, memory, presets
from swapmoe.config import RunSettings
from swapmoe.errors import ModelError
from swapmoe.flag_table import Launch
from swapmoe.flags import Given, build_argv, written_rows
from swapmoe.gguf_info import ModelFacts
from swapmoe.memory import Memory
from tests.support.headers import MOE, ROWS, gguf, write

MIB = 1 << 20


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    keys = {"embedding_length": 4096, "attention.head_count": 32, "attention.head_count_kv": 32}
    more = {f"qwen2moe.{key}": value for key, value in keys.items()}
    return gguf_info.inspect(write(tmp_path / "m.gguf", gguf(MOE | more, ROWS)))


def here(monkeypatch: pytest.MonkeyPatch, usable: int, total: int = 64 << 30) -> None:
    monkeypatch.setattr(memory, "usable", lambda: Memory(usable, total, "free memory"))


def test_the_plan_is_kept(facts: ModelFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    here(monkeypatch, 4 << 30)
    found = presets.preset(facts, RunSettings(), ())
    assert found.sizing.prompt_cache == found.plan.prompt_cache // MIB > 0
    assert found.sizing.ubatch is None
    assert found.sizing.cache_type is None
    assert found.notes == ()
    assert found.summary.startswith("plan: fits: all experts")


def test_little_memory_makes_everything_smaller(
    facts: ModelFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    here(monkeypatch, 425 * MIB)
    found = presets.preset(facts, RunSettings(ctx=8192), ())
    assert found.sizing.cache_type == "q8_0"
    assert found.sizing.ubatch == 128
    assert found.sizing.prompt_cache == 0
    assert any("changes answers" in note for note in found.notes)
    argv = build_argv(
        written_rows(Launch(Path("m"), "x", RunSettings(), sizing=found.sizing), ()), ()
    )
    text = " ".join(argv)
    assert "--ubatch-size 128 --cache-type-k q8_0 --cache-type-v q8_0" in text


def test_the_users_sizes_are_planned_with(
    facts: ModelFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    here(monkeypatch, 4 << 30)
    given = [Given("-ub", "64"), Given("-ctk", "q4_0"), Given("--cache-type-v", "q4_0")]
    found = presets.preset(facts, RunSettings(), given)
    assert (found.plan.ubatch, found.plan.kv_type) == (64, "q4_0")
    mixed = presets.preset(facts, RunSettings(), [Given("-ctk", "q8_0"), Given("-ub", "x")])
    assert (mixed.plan.ubatch, mixed.plan.kv_type) == (512, "f16")
    launch = Launch(Path("m"), "x", RunSettings(), sizing=found.sizing)
    assert "--ubatch-size" not in build_argv(written_rows(launch, given), ())


def test_what_cannot_work_is_refused(facts: ModelFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    here(monkeypatch, 4 << 30)
    with pytest.raises(ModelError, match="cannot work like this") as caught:
        presets.preset(facts, RunSettings(memory_limit=64 * MIB), ())
    assert "the memory limit given" in caught.value.evidence[0]
    assert caught.value.hint.startswith("swapmoe plan ")
    here(monkeypatch, 32 * MIB, 32 * MIB)
    with pytest.raises(ModelError):
        presets.preset(facts, RunSettings(), ())


def test_too_little_free_at_the_moment_is_a_note(
    facts: ModelFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    here(monkeypatch, 32 * MIB)
    found = presets.preset(facts, RunSettings(), ())
    assert "too little memory is free at the moment: " in found.notes[-1]
    assert found.sizing.prompt_cache == 0
    assert found.summary.startswith("plan: cannot work: ")
