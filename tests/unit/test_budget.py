"""Expert options against the header: floors, overrides, speculation, and combinations."""

from pathlib import Path

import pytest

from swapmoe import budget, gguf_info
from swapmoe.config import RunSettings
from swapmoe.errors import ModelError, UsageError
from swapmoe.flags import Given
from swapmoe.gguf_info import ModelFacts
from tests.support.headers import MOE, gguf, write
from tests.support.headers import Row as Tensor

MIB = 1 << 20
SLICE = 1024 * 1024 // 32 * 18
"""Bytes of one Q4_0 slice of the model below; a token needs 2 experts x 5 tensors = 5.625 MiB."""


def facts_of(folder: Path, **changes: object) -> ModelFacts:
    rows = [
        Tensor(f"blk.{layer}.ffn_{part}_exps.weight", (1024, 1024, 4))
        for layer, parts in ((0, ("gate", "up", "down")), (1, ("gate_up", "down")))
        for part in parts
    ]
    return gguf_info.inspect(write(folder / "m.gguf", gguf({**MOE, **changes}, rows)))


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    return facts_of(tmp_path)


def test_one_tokens_demand(facts: ModelFacts) -> None:
    need = budget.demand(facts, [])
    assert need == budget.Demand(2, 2 * 5 * SLICE)
    assert need.floor_mib == 6


def override(value: str) -> list[Given]:
    return [Given("--temp", "0"), Given("--override-kv", value)]


def test_an_override_changes_the_demand(facts: ModelFacts) -> None:
    need = budget.demand(facts, override("a.b=str:x,qwen2moe.expert_used_count=int:3"))
    assert need == budget.Demand(3, 3 * 5 * SLICE)
    (text,) = budget.remarks(RunSettings(), facts, need, 0)
    assert text == (
        f"experts per token and layer: 3 instead of 2; bytes of experts per token: {15 * SLICE:,} "
        f"instead of {10 * SLICE:,}"
    )


@pytest.mark.parametrize("value", ["int:0", "int:5", "int:99999999999999999999"])
def test_an_override_out_of_range(facts: ModelFacts, value: str) -> None:
    with pytest.raises(ModelError, match="has 4 per layer and uses 2"):
        budget.demand(facts, override(f"qwen2moe.expert_used_count={value}"))


@pytest.mark.parametrize(
    "value", ["float:3", "str:3", "3", "int:", "int:-1", "int:3x", "int:٣", ""]
)
def test_an_override_of_another_type(facts: ModelFacts, value: str) -> None:
    with pytest.raises(UsageError, match="type int"):
        budget.demand(facts, override(f"qwen2moe.expert_used_count={value}"))


@pytest.mark.parametrize(
    "key", ["qwen3moe.expert_used_count", "expert_used_count", "x.y.expert_used_count"]
)
def test_an_override_for_another_architecture(facts: ModelFacts, key: str) -> None:
    with pytest.raises(ModelError, match="is a qwen2moe model") as caught:
        budget.demand(facts, override(f"{key}=int:3"))
    assert caught.value.hint == "--override-kv qwen2moe.expert_used_count=int:3"


def test_an_override_given_twice(facts: ModelFacts) -> None:
    one = "qwen2moe.expert_used_count=int:3"
    with pytest.raises(UsageError, match="2 times"):
        budget.demand(facts, override(f"{one},{one}"))


def test_the_floor_of_keep_recent(facts: ModelFacts) -> None:
    need = budget.demand(facts, [])
    with pytest.raises(ModelError, match="below the 2 experts") as caught:
        budget.check_limits(RunSettings(keep_recent=1), facts, need)
    assert "--keep-recent 2 " in caught.value.hint
    for enough in (0, 2, 3, 4):
        budget.check_limits(RunSettings(keep_recent=enough), facts, need)


@pytest.mark.parametrize("io", ["mmap", "fault"])
def test_the_floor_of_the_cache_size(facts: ModelFacts, io: str) -> None:
    need = budget.demand(facts, [])

    def check(size: int, demand: budget.Demand = need) -> None:
        settings = RunSettings.model_validate({"cache_size": size, "io": io})
        budget.check_limits(settings, facts, demand)

    for little in (MIB, 5 * MIB, 6 * MIB - 1):
        with pytest.raises(ModelError, match="below one token's demand") as caught:
            check(little)
        assert "--cache-size 6 " in caught.value.hint
    for enough in (0, 6 * MIB, 1 << 40):
        check(enough)
    with pytest.raises(ModelError):
        check(6 * MIB, budget.Demand(3, facts.bytes_per_token(3)))


@pytest.mark.parametrize("io", ["auto", "direct"])
def test_a_cache_below_the_floor_is_only_noted_where_it_can_work(
    facts: ModelFacts, io: str
) -> None:
    need = budget.demand(facts, [])
    settings = RunSettings.model_validate({"cache_size": MIB, "io": io})
    budget.check_limits(settings, facts, need)
    assert "below one token's demand" in budget.remarks(settings, facts, need, 0)[0]


def test_limits_that_limit_nothing_are_said(facts: ModelFacts) -> None:
    settings = RunSettings(keep_recent=4, cache_size=1 << 30)
    found = budget.remarks(settings, facts, budget.demand(facts, []), 0)
    assert len(found) == 2
    assert all("limits nothing" in text for text in found)


@pytest.mark.parametrize(
    ("given", "env", "tokens"),
    [
        ([], {}, 0),
        ([Given("--temp", "0")], {}, 0),
        ([Given("--spec-type", "none")], {}, 0),
        ([Given("--spec-draft-n-max", "8")], {}, 0),
        ([Given("-md", "d.gguf")], {}, 3),
        ([Given("--model-draft", "d.gguf"), Given("--spec-draft-n-max", "8")], {}, 8),
        ([Given("-hfd", "x/y")], {"LLAMA_ARG_SPEC_DRAFT_N_MAX": "5"}, 5),
        ([Given("--spec-type", "draft-mtp")], {}, 3),
        ([Given("--spec-type", "ngram-mod,ngram-simple")], {}, 64),
        ([Given("--spec-type", "ngram-simple"), Given("--spec-ngram-simple-size-m", "7")], {}, 7),
        ([Given("--spec-default")], {}, 64),
        ([], {"LLAMA_ARG_SPEC_DRAFT_MODEL": "d.gguf"}, 3),
        ([], {"LLAMA_ARG_SPEC_TYPE": "draft-mtp"}, 3),
        ([Given("-md", "d.gguf"), Given("--spec-draft-n-max", "many")], {}, 3),
    ],
)
def test_tokens_drafted(given: list[Given], env: dict[str, str], tokens: int) -> None:
    assert budget.check_combination(RunSettings(), given, env) == tokens


def test_the_price_of_speculation_is_said(facts: ModelFacts) -> None:
    (text,) = budget.remarks(RunSettings(), facts, budget.demand(facts, []), 3)
    assert "up to 2.0 times" in text  # four tokens, but a layer has only twice the experts used
    assert f"{20 * SLICE:,} bytes" in text


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        (RunSettings(fixation=1), []),
        (RunSettings(fixation=4), [Given("-md", "d.gguf")]),
        (RunSettings(fixation=4), [Given("-np", "2")]),
        (RunSettings(fixation=4), [Given("-np", "1"), Given("--parallel", "-1")]),
    ],
)
def test_combinations_that_mean_nothing(settings: RunSettings, given: list[Given]) -> None:
    with pytest.raises(UsageError):
        budget.check_combination(settings, given, {})
    budget.check_combination(settings.model_copy(update={"fixation": 0}), given, {})
    budget.check_combination(RunSettings(fixation=2), [Given("-np", "1")], {})


def test_blocks_that_predict_further_tokens_may_be_left_out(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, **{"qwen2moe.nextn_predict_layers": 1})
    assert facts.slices == 20
    assert facts.slices_without_nextn == 12
