"""`swapmoe inspect`: what a header says, of models of any size, whole or not."""

import json
import time
from pathlib import Path

import pytest

from swapmoe import gguf_info, inspection
from swapmoe.cli import main
from swapmoe.errors import ModelError
from swapmoe.inspection import Inspection
from tests.support.headers import F32, MOE, ROWS, Row, experts, gguf, head, write, write_sparse
from tests.support.models import make_tiny
from tests.support.published import PUBLISHED


def inspect(path: Path) -> Inspection:
    return inspection.inspect(gguf_info.inspect(path, header_only=True))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes(tmp_path: Path, name: str) -> None:
    """Bytes per token and of all experts, as others worked them out (types vary by 10 %)."""
    model = PUBLISHED[name]
    data, _ = head(model.pairs(), model.rows())
    found = inspect(write(tmp_path / "head.gguf", data))
    assert found.bytes_per_token / 1e9 == pytest.approx(model.token_gb, rel=0.1)
    assert found.split.routed / 1e9 == pytest.approx(model.pool_gb, rel=0.1)
    assert found.expert_bytes * model.used * model.layers == found.bytes_per_token
    assert found.facts.slices == 3 * model.layers * model.experts
    assert (found.layers.routed, found.layers.hashed) == (model.layers, model.hashed)
    assert found.facts.missing_bytes == found.facts.tensor_bytes


def test_a_header_without_its_data_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = PUBLISHED["MiniMax-M2.7 IQ1_M"]
    data, size = head(model.pairs(), model.rows())
    path = write(tmp_path / "head.gguf", data + bytes(1 << 20))
    assert main(["inspect", str(path)]) == 0
    assert "the header only, " in capsys.readouterr().out
    assert main(["inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["header_only"]
    assert found["missing_bytes"] == size - (1 << 20)
    with pytest.raises(ModelError, match="is cut off"):
        gguf_info.inspect(path)


def test_a_cut_download_is_not_a_header(tmp_path: Path) -> None:
    whole = gguf(MOE, ROWS)
    path = write(tmp_path / "cut.gguf", whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"cut\.gguf is cut off: tensor blk\.1") as caught:
        inspect(path)
    assert "the first tensor that is not whole: blk." in str(caught.value.evidence)


def test_200_gb_in_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = PUBLISHED["DSV4-Flash-0731 IQ1_M"]
    rows = [*model.rows(), *(Row(f"pad.{n}.weight", (1 << 20, 8192), F32) for n in range(4))]
    path = write_sparse(tmp_path / "huge.gguf", model.pairs(), rows)
    assert path.stat().st_size > 200e9
    inspect(path)  # imports what is imported late
    started = time.process_time()
    assert main(["inspect", str(path)]) == 0
    assert time.process_time() - started < 1
    assert f"{path.stat().st_size:,} bytes" in capsys.readouterr().out


def test_shards_joined_with_cat(tmp_path: Path) -> None:
    def shard(number: int) -> bytes:
        split = {"split.no": number, "split.count": 3}
        return gguf({**(MOE if number == 0 else {}), **split}, ROWS[number::3])

    path = write(tmp_path / "joined.gguf", b"".join(shard(number) for number in range(3)))
    with pytest.raises(ModelError, match="several shards joined end to end") as caught:
        inspect(path)
    assert "llama-gguf-split --merge" in caught.value.hint


@pytest.mark.parametrize("name", ["m.gguf-split-a", "m.gguf.part1of2", "m.gguf.001"])
def test_a_part_of_a_file_is_to_be_joined(tmp_path: Path, name: str) -> None:
    whole = gguf(MOE, ROWS)
    path = write(tmp_path / name, whole[: len(whole) // 2])
    with pytest.raises(ModelError) as caught:
        inspect(path)
    assert "join all parts in order" in caught.value.hint


def test_a06_fused_experts(tmp_path: Path) -> None:
    rows = [*experts(0, "gate_up", "down"), *experts(1, "gate_up", "down")]
    found = inspect(write(tmp_path / "f.gguf", gguf(MOE, rows)))
    assert found.split.routed == sum(row.nbytes for row in rows)
    assert found.layers.routed == 2


def test_a09_old_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        Row(f"blk.0.ffn_{part}.{n}.weight", (64, 32)) for part in ("gate", "up") for n in range(4)
    ]
    path = write(tmp_path / "old.gguf", gguf({"general.architecture": "llama"}, rows))
    assert main(["inspect", str(path)]) == 9
    assert "pre-2024 expert layout" in capsys.readouterr().err


def test_layers_of_each_kind(tmp_path: Path) -> None:
    deepseek = inspect(make_tiny(tmp_path, "tiny-deepseek4")).layers
    assert (deepseek.total, deepseek.routed, deepseek.hashed, deepseek.prediction) == (5, 4, 2, 1)
    laguna = inspect(make_tiny(tmp_path, "tiny-laguna")).layers
    assert (laguna.dense, laguna.dense_lead, laguna.routed) == (1, 1, 2)
    dense = inspect(make_tiny(tmp_path, "tiny-dense")).layers
    assert (dense.dense, dense.routed) == (2, 0)
    mixed = [Row("blk.0.ffn_up.weight", (64, 32)), *experts(1, "up"), *experts(3, "up")]
    pairs = {**MOE, "qwen2moe.block_count": 4}
    found = inspect(write(tmp_path / "mixed.gguf", gguf(pairs, mixed))).layers
    assert (found.dense, found.dense_lead, found.routed) == (2, 1, 2)


def test_groups_hold_every_byte_once(tmp_path: Path) -> None:
    for preset in ("tiny", "tiny-deepseek4", "tiny-gemma4", "tiny-dense", "tiny-laguna"):
        found = inspect(make_tiny(tmp_path, preset))
        assert sum(group.nbytes for group in found.groups) == found.facts.tensor_bytes
        split = found.split
        total = split.routed + split.dense + split.lookup + split.unused
        assert total == found.facts.tensor_bytes


def test_expert_like_tensors_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*ROWS, Row("blk.0.ffn_up_chexps.weight", (64, 32, 2))]
    assert main(["inspect", str(write(tmp_path / "f.gguf", gguf(MOE, rows)))]) == 0
    assert "ffn_up_chexps.weight looks like experts" in capsys.readouterr().out


def test_lines_fit_a_terminal(tmp_path: Path) -> None:
    for name, model in PUBLISHED.items():
        path = write_sparse(tmp_path / "m.gguf", model.pairs(), model.rows())
        for line in inspection.lines(inspect(path)):
            assert len(line) <= 80, (name, line)


def test_absurd_counts_are_refused(tmp_path: Path) -> None:
    pairs = {**MOE, "qwen2moe.block_count": 2**32 - 1}
    with pytest.raises(ModelError, match="block_count is 4,294,967,295"):
        inspect(write(tmp_path / "x.gguf", gguf(pairs, ROWS)))
