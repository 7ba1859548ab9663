"""LoRA adapters against the model they are given to."""

from pathlib import Path

import pytest

from swapmoe import adapters, gguf_info
from swapmoe.errors import ModelError
from swapmoe.flags import Given
from swapmoe.gguf_info import ModelFacts
from tests.support.headers import F32, MOE, ROWS, Row, gguf, write

KEYS = {"general.type": "adapter", "adapter.type": "lora", "general.architecture": "qwen2moe"}


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    return gguf_info.inspect(write(tmp_path / "m.gguf", gguf(MOE, ROWS)))


def adapter(folder: Path, experts: int, name: str = "a.gguf", **keys: str) -> Path:
    rows = [
        Row("blk.0.ffn_up_exps.weight.lora_a", (64, 8, experts), F32),
        Row("blk.0.ffn_up_exps.weight.lora_b", (8, 32, experts), F32),
        Row("blk.0.attn_q.weight.lora_a", (64, 8), F32),
    ]
    keys = {key.replace("_", "."): value for key, value in keys.items()}
    return write(folder / name, gguf(KEYS | keys, rows))


def test_one_that_fits_stays_in_memory(tmp_path: Path, facts: ModelFacts) -> None:
    given = [Given("--lora", str(adapter(tmp_path, 4)))]
    (remark,) = adapters.check(given, facts)
    assert remark == f"the adapter a.gguf stays in memory: {4 * (64 * 8 * 5 + 8 * 32 * 4):,} bytes"
    assert adapters.check([Given("--temp", "x")], facts) == []


@pytest.mark.parametrize("option", ["--lora", "--lora-scaled"])
def test_a17_another_number_of_experts_is_refused(
    tmp_path: Path, facts: ModelFacts, option: str
) -> None:
    value = str(adapter(tmp_path, 2)) + (":0.5" if option == "--lora-scaled" else "")
    with pytest.raises(ModelError, match=r"made for 2 experts per layer; m\.gguf has 4"):
        adapters.check([Given(option, value)], facts)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"general_architecture": "qwen3moe"}, "is for qwen3moe"),
        ({"general_type": "model"}, "is not a LoRA adapter"),
        ({"adapter_type": "control_vector"}, "is not a LoRA adapter"),
    ],
)
def test_another_kind_is_refused(
    tmp_path: Path, facts: ModelFacts, keys: dict[str, str], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        adapters.check([Given("--lora", str(adapter(tmp_path, 4, **keys)))], facts)


def test_a_missing_one_is_refused(facts: ModelFacts) -> None:
    with pytest.raises(ModelError, match="no such"):
        adapters.check([Given("--lora", "none.gguf")], facts)


def test_lists_as_llama_cpp_reads_them() -> None:
    assert adapters.paths([Given("--lora", 'a.gguf,"b,c.gguf"')]) == [
        Path("a.gguf"),
        Path("b,c.gguf"),
    ]
    assert adapters.paths([Given("--lora-scaled", "a.gguf:1,b.gguf:0.5")]) == [
        Path("a.gguf"),
        Path("b.gguf"),
    ]
