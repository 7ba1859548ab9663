"""Widened copies: what changes, what does not, and what cannot be widened."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.gguf_reader import ReaderTensor

from swapmoe import model_pack as pack
from swapmoe.errors import ModelError, UsageError
from swapmoe.model_widen import Widened, Widening, widen
from tests.support.models import make_tiny, read_slice

EMBD, FFN, OLD = 64, 96, 2
NEW = {
    "blk.0.ffn_gate_inp.weight",
    "blk.0.exp_probs_b.bias",
    "blk.0.ffn_gate_up_exps.weight",
    "blk.0.ffn_down_exps.weight",
    "blk.0.ffn_down_exps.scale",
    "blk.0.ffn_down_exps.bias",
    "blk.0.ffn_down_chexps.weight",
}
SHAPES = {
    "token_embd.weight": (300, EMBD),
    "blk.0.ffn_norm_exps.weight": (EMBD,),
    "blk.0.ffn_gate_inp.weight": (OLD, EMBD),
    "blk.0.ffn_gate_inp.scale": (EMBD,),
    "blk.0.exp_probs_b.bias": (OLD,),
    "blk.0.ffn_gate_up_exps.weight": (OLD, 2 * FFN, EMBD),
    "blk.0.ffn_down_exps.weight": (OLD, EMBD, FFN),
    "blk.0.ffn_down_exps.scale": (OLD,),
    "blk.0.ffn_down_exps.bias": (OLD, EMBD),
    "blk.0.ffn_down_chexps.weight": (OLD // 2, EMBD, FFN),
    "blk.0.ffn_down_shexp.weight": (EMBD, FFN),
    "blk.0.ffn_norm.weight": (OLD,),
}


def write_source(folder: Path, **keys: int) -> Path:
    """Write a model with everything that has an expert dimension, and things that look like it."""
    path = folder / "small.gguf"
    writer = GGUFWriter(path, "grovemoe")
    for key, value in ({"expert_count": OLD, "expert_used_count": 1} | keys).items():
        writer.add_uint32(f"grovemoe.{key}", value)
    writer.add_array("grovemoe.rope.dimension_sections", [1, 2, 3, 4])
    writer.add_string("general.name", "x" * 21)
    values = np.random.default_rng(1)
    for name, shape in SHAPES.items():
        writer.add_tensor(name, values.standard_normal(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(path: Path) -> dict[str, ReaderTensor]:
    return {tensor.name: tensor for tensor in GGUFReader(path).tensors}


def shape(tensor: ReaderTensor) -> tuple[int, ...]:
    return tuple(reversed(tensor.shape.tolist()))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path, experts_per_group=2)


@pytest.fixture
def made(source: Path) -> Widened:
    return widen(source, source.with_name("wide.gguf"), Widening())


def test_exactly_the_expert_dimensions_grow(source: Path, made: Widened) -> None:
    for name, tensor in tensors(made.path).items():
        old = SHAPES[name]
        assert shape(tensor) == ((old[0] * 8, *old[1:]) if name in NEW else old), name
    assert list(tensors(made.path)) == list(SHAPES)


def test_all_else_is_byte_for_byte_the_same(source: Path, made: Widened) -> None:
    before, after = tensors(source), tensors(made.path)
    for name in SHAPES.keys() - NEW:
        assert after[name].data.tobytes() == before[name].data.tobytes(), name
    old, new = GGUFReader(source), GGUFReader(made.path)
    counts = {"grovemoe.expert_count": 16, "grovemoe.expert_used_count": 4}
    for key, field in old.fields.items():
        if not key.startswith("GGUF."):
            assert new.fields[key].contents() == counts.get(key, field.contents()), key
    assert list(new.fields) == list(old.fields)


def test_only_routed_weights_are_quantised(made: Widened) -> None:
    types = {name: tensor.tensor_type.name for name, tensor in tensors(made.path).items()}
    routed = {"blk.0.ffn_gate_up_exps.weight", "blk.0.ffn_down_exps.weight"}
    assert {name for name, kind in types.items() if kind != "F32"} == routed
    assert made.routed == dict.fromkeys(sorted(routed, reverse=True), "Q4_0")
    assert (made.quantised, made.kept) == (2, {})


def test_rows_that_are_too_short_are_named(source: Path) -> None:
    made = widen(source, source.with_name("wide.gguf"), Widening(type="Q4_K"))
    assert made.kept == {
        "blk.0.ffn_gate_up_exps.weight": "row of 64 is not a multiple of 256",
        "blk.0.ffn_down_exps.weight": "row of 96 is not a multiple of 256",
    }
    assert set(made.routed.values()) == {"F32"}


def test_every_slice_is_different(made: Widened) -> None:
    slices = [read_slice(made.path, name, n) for name in made.routed for n in range(16)]
    assert len(set(slices)) == 32


def test_equal_seeds_give_equal_files(source: Path, made: Widened) -> None:
    again = widen(source, source.with_name("again.gguf"), Widening())
    other = widen(source, source.with_name("other.gguf"), Widening(seed=2))
    assert made.path.read_bytes() == again.path.read_bytes() != other.path.read_bytes()


@pytest.mark.parametrize(
    ("how", "named"),
    [
        (Widening(used=17), r"used \(17\)"),
        (Widening(used=0), r"used \(0\)"),
        (Widening(type="Q9"), "type Q9"),
        (Widening(experts=15), "not a multiple of 2 experts per group"),
    ],
)
def test_counts_that_do_not_fit_are_refused(source: Path, how: Widening, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        widen(source, source.with_name("wide.gguf"), how)
    assert list(source.parent.glob("*.gguf*")) == [source]


def test_expert_groups_stay_whole(tmp_path: Path) -> None:
    source = write_source(tmp_path, expert_group_count=3)
    with pytest.raises(UsageError, match="not a multiple of 3 expert groups"):
        widen(source, tmp_path / "wide.gguf", Widening())


def test_models_that_cannot_be_widened_are_named(tmp_path: Path) -> None:
    target = tmp_path / "wide.gguf"
    with pytest.raises(ModelError, match="no routed experts"):
        widen(make_tiny(tmp_path, "tiny-dense"), target, Widening())
    with pytest.raises(ModelError, match="maps tokens to experts"):
        widen(make_tiny(tmp_path, "tiny-deepseek4"), target, Widening())
    with pytest.raises(ModelError, match="cannot read"):
        widen(tmp_path / "none.gguf", target, Widening())
    (tmp_path / "text.gguf").write_text("not a model, but a text that is long enough")
    with pytest.raises(ModelError, match="cannot read"):
        widen(tmp_path / "text.gguf", target, Widening())
    with pytest.raises(ModelError, match="cannot write"):
        widen(make_tiny(tmp_path), tmp_path / "no" / "wide.gguf", Widening())
    assert not target.exists()


def test_existing_file_is_kept_without_force(source: Path) -> None:
    target = source.with_name("wide.gguf")
    target.write_bytes(b"mine")
    with pytest.raises(ModelError, match="exists already"):
        widen(source, target, Widening())
    widen(source, target, Widening(), force=True)
    assert target.read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize("type_name", pack.TENSOR_TYPES)
def test_generated_models_can_be_widened(tmp_path: Path, type_name: str) -> None:
    source = make_tiny(tmp_path, "tiny-gpt-oss", embd=256, ffn=256, heads=16)
    made = widen(source, tmp_path / "wide.gguf", Widening(experts=32, type=type_name))
    assert set(made.routed.values()) == {type_name}
    assert shape(tensors(made.path)["blk.1.ffn_up_exps.bias"]) == (32, 256)
