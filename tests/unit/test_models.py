"""The generated models: what is in them, that they are deterministic, and what is refused."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants
from hypothesis import given, settings
from hypothesis import strategies as st

from swapmoe import model_pack as pack
from swapmoe import models
from swapmoe.errors import ModelError, UsageError
from swapmoe.model_archs import ARCHITECTURES
from swapmoe.model_presets import PRESETS
from swapmoe.model_spec import Tensor, check, tensors, total_bytes
from swapmoe.model_vocab import MIN_VOCAB, build_vocabulary
from swapmoe.models import ensure_model, shard_paths, write_model
from tests.support.models import make_tiny, read_slice, tiny_spec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder."""
    path = tmp_path / "models"
    path.mkdir()
    return path


def field(reader: GGUFReader, key: str) -> object:
    return reader.fields[key].contents()


TINY = [name for name in PRESETS if name.startswith("tiny")]


@pytest.mark.parametrize("preset", TINY)
def test_file_holds_the_tensors_of_the_spec(folder: Path, preset: str) -> None:
    spec = PRESETS[preset]
    reader = GGUFReader(make_tiny(folder, preset))
    found = [
        (t.name, tuple(reversed(t.shape.tolist())), t.tensor_type.name) for t in reader.tensors
    ]
    assert found == [(t.name, t.shape, t.type) for t in tensors(spec)]
    assert field(reader, "general.architecture") == spec.arch
    assert len(field(reader, "tokenizer.ggml.tokens")) == spec.vocab  # type: ignore[arg-type]


def test_tiny_has_24_slices() -> None:
    assert PRESETS["tiny"].slices == 24


def test_presets_have_the_slices_of_their_tables() -> None:
    assert {name: PRESETS[name].slices for name in TINY} == {
        "tiny": 2 * 3 * 4,
        "tiny-qwen3moe": 2 * 3 * 8,
        "tiny-dense": 0,
        "tiny-gpt-oss": 2 * 3 * 16,
        "tiny-gemma4": 2 * 2 * 16,
        "tiny-laguna": (3 - 1) * 3 * 16,
        "tiny-deepseek4": (4 + 1) * 3 * 16,
    }


def test_hash_layers_map_each_token_to_distinct_experts(folder: Path) -> None:
    spec = PRESETS["tiny-deepseek4"]
    tables = [
        t.data
        for t in GGUFReader(make_tiny(folder, "tiny-deepseek4")).tensors
        if "tid2eid" in t.name
    ]
    assert len(tables) == spec.hash_layers
    assert not (tables[0] == tables[1]).all()
    for table in tables:
        assert table.shape == (spec.vocab, spec.used)
        assert table.dtype == np.int32
        assert all(len(set(row)) == spec.used for row in table.tolist())
        assert set(table.flatten().tolist()) == set(range(spec.experts))


def test_later_fields_leave_earlier_models_as_they_were() -> None:
    assert PRESETS["tiny"].digest == "187b7dfb"
    assert PRESETS["tiny-qwen3moe"].digest == "901bba3e"


def test_down_may_have_a_type_of_its_own(folder: Path) -> None:
    model = make_tiny(folder, type="Q4_0", down_type="Q8_0")
    types = {t.name.split(".")[2]: t.tensor_type.name for t in GGUFReader(model).tensors[1:-2]}
    assert types["ffn_up_exps"] == types["ffn_gate_exps"] == "Q4_0"
    assert types["ffn_down_exps"] == "Q8_0"
    assert types["ffn_down_shexp"] == "Q4_0"


@pytest.mark.parametrize(
    ("preset", "expert_mb", "slices"),
    [
        ("35b-a3b-q4_k_m", 1.74, 10 * 3 * 256),
        ("122b-a10b-q2_k", 3.22, 6 * 3 * 256),
        ("minimax-iq1_m", 3.64, 5 * 3 * 256),
        ("deepseek-v4-iq1_m", 6.71, 4 * 3 * 256),
    ],
)
def test_published_shapes_have_experts_of_the_published_size(
    preset: str, expert_mb: float, slices: int
) -> None:
    spec = PRESETS[preset]
    routed = sum(tensor.nbytes for tensor in tensors(spec) if tensor.is_routed)
    assert routed / spec.layers / spec.experts == pytest.approx(expert_mb * 1e6, rel=0.05)
    assert spec.slices == slices
    assert 4e9 < total_bytes(spec) < 8e9


def test_big_preset_has_the_measured_shape() -> None:
    spec = PRESETS["qwen3-30b-layers"]
    assert (spec.slices, spec.slice_bytes) == (9216, 884_736)
    assert total_bytes(spec) == pytest.approx(8.6e9, rel=0.01)


def test_equal_specs_give_equal_files_and_other_seeds_do_not(folder: Path) -> None:
    paths = [make_tiny(folder / name, seed=seed) for name, seed in made(folder, a=1, b=1, c=2)]
    first, second, other = (path.read_bytes() for path in paths)
    assert first == second
    assert first != other
    assert len(first) == len(other)


def made(folder: Path, **seeds: int) -> list[tuple[str, int]]:
    for name in seeds:
        (folder / name).mkdir()
    return list(seeds.items())


@pytest.mark.parametrize("type_name", pack.TENSOR_TYPES)
def test_every_slice_is_different(folder: Path, type_name: str) -> None:
    spec = tiny_spec(type=type_name, dense_type="F32", embd=256, ffn=256, heads=16)
    path = write_model(spec, folder / "m.gguf")[0]
    slices = {
        read_slice(path, tensor.name, expert)
        for tensor in tensors(spec)
        if "_exps" in tensor.name
        for expert in range(spec.experts)
    }
    assert len(slices) == spec.slices


@pytest.mark.parametrize("type_name", pack.TENSOR_TYPES)
def test_values_have_the_wanted_spread(type_name: str) -> None:
    data = pack.random_tensor(1, "t", 0, type_name, 256 * 512, 0.125)
    if type_name in pack.FLOAT_TYPES:
        values = data.view("<f4" if type_name == "F32" else "<f2").astype(np.float32)
    else:
        values = quants.dequantize(data, GGMLQuantizationType[type_name])
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(0.125, rel=0.05)
    assert abs(values.mean()) < 0.125 * 0.02


def test_bytes_are_those_of_earlier_versions() -> None:
    """Measurements quote these models: their bytes may not change unnoticed."""
    data = pack.random_bytes(1, "blk.0.ffn_up_exps.weight", 3, 9)
    assert data.tobytes().hex() == "ed1b427c17e206edaa"


@pytest.mark.parametrize(("locality", "cosine"), [(0.0, 0.0), (0.5, 0.5), (0.9, 0.9)])
def test_locality_is_the_cosine_of_two_embeddings(
    folder: Path, locality: float, cosine: float
) -> None:
    spec = tiny_spec(
        embd=1024, heads=8, head_dim=128, kv_heads=8, locality=locality, embd_type="F32"
    )
    path = write_model(spec, folder / "m.gguf")[0]
    rows = next(t.data for t in GGUFReader(path).tensors if t.name == "token_embd.weight")
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
    assert cosines.mean() == pytest.approx(cosine, abs=0.03)
    assert rows.std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("shards", [2, 3, 7])
def test_shards_hold_the_same_tensors_as_one_file(folder: Path, shards: int) -> None:
    whole = GGUFReader(make_tiny(folder))
    make_tiny(folder, shards=shards)
    parts = [GGUFReader(p) for p in sorted(folder.glob(f"*-of-{shards:05}.gguf"))]
    assert len(parts) == shards
    assert all(part.tensors for part in parts)
    joined = {t.name: t.data.tobytes() for part in parts for t in part.tensors}
    assert joined == {t.name: t.data.tobytes() for t in whole.tensors}
    assert [field(part, "split.no") for part in parts] == list(range(shards))
    assert {field(part, "split.count") for part in parts} == {shards}
    assert {field(part, "split.tensors.count") for part in parts} == {len(whole.tensors)}
    assert "tokenizer.ggml.tokens" not in parts[1].fields


@given(
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=40),
    data=st.data(),
)
def test_no_shard_is_empty_and_order_is_kept(sizes: list[int], data: st.DataObject) -> None:
    items = [Tensor(str(i), "", (size,), "F32") for i, size in enumerate(sizes)]
    parts = models._split(items, shards := data.draw(st.integers(1, len(items))))
    assert len(parts) == shards
    assert all(parts)
    assert [tensor for part in parts for tensor in part] == items


def test_shard_names() -> None:
    assert [p.name for p in shard_paths(Path("x/model.gguf"), 2)] == [
        "model-00001-of-00002.gguf",
        "model-00002-of-00002.gguf",
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"used": 5}, "used (5) is more than experts (4)"),
        ({"ffn": 48}, "row of 48 is not a multiple of 32 (Q4_0)"),
        ({"type": "Q4_K"}, "row of 64 is not a multiple of 256 (Q4_K)"),
        ({"head_dim": 32}, "heads * head_dim = embd"),
        ({"kv_heads": 3}, "not a multiple of kv_heads"),
        ({"kv_heads": 0}, "kv_heads must be positive"),
        ({"layers": 0}, "layers must be positive"),
        ({"vocab": MIN_VOCAB - 1}, "vocab"),
        ({"locality": 1.0}, "locality must be in [0, 1)"),
        ({"locality": float("nan")}, "locality must be in [0, 1)"),
        ({"arch": "gpt2"}, "arch gpt2"),
        ({"type": "Q9"}, "type Q9"),
        ({"embd_type": "Q4_K"}, "embd_type Q4_K"),
        ({"hash_layers": 1}, "qwen2moe has no hash_layers"),
        ({"arch": "laguna", "dense_layers": 3}, "dense_layers (3) is not between 0 and 2"),
        ({"arch": "laguna", "dense_layers": -1}, "dense_layers (-1)"),
        ({"arch": "deepseek4"}, "one key/value head, not 2"),
        ({"arch": "deepseek4", "kv_heads": 1}, "deepseek4 needs at least 3 layers, not 2"),
        ({"arch": "deepseek4", "mtp_layers": 2}, "mtp_layers (2) is not between 0 and 1"),
    ],
)
def test_bad_shapes_are_refused_before_writing(
    folder: Path, changes: dict[str, object], named: str
) -> None:
    with pytest.raises(UsageError) as caught:
        write_model(tiny_spec(**changes), folder / "m.gguf")
    assert named in "\n".join(caught.value.evidence)
    assert not list(folder.iterdir())


def test_more_shards_than_tensors_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="99 shards"):
        write_model(PRESETS["tiny"], folder / "m.gguf", shards=99)


@settings(max_examples=30, deadline=None)
@given(
    arch=st.sampled_from(sorted(ARCHITECTURES)),
    layers=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 4]),
    experts=st.integers(1, 5),
    type_name=st.sampled_from(["Q4_0", "Q8_0", "F16"]),
)
def test_any_good_shape_is_written_in_full(
    tmp_path_factory: pytest.TempPathFactory,
    arch: str,
    layers: int,
    heads: int,
    experts: int,
    type_name: str,
) -> None:
    spec = tiny_spec(
        arch=arch,
        layers=max(layers, ARCHITECTURES[arch].least_layers),
        embd=32 * heads,
        heads=heads,
        kv_heads=1,
        head_dim=32,
        experts=experts,
        used=1,
        type=type_name,
    )
    check(spec)
    done: list[int] = []
    made_in = tmp_path_factory.mktemp("m")
    path = write_model(spec, made_in / "m.gguf", progress=done.append)[0]
    assert done[-1] == total_bytes(spec)
    assert sum(t.n_bytes for t in GGUFReader(path).tensors) == total_bytes(spec)
    assert [p.name for p in made_in.iterdir()] == ["m.gguf"]


def test_existing_file_is_kept_without_force(folder: Path) -> None:
    path = folder / "m.gguf"
    path.write_bytes(b"mine")
    with pytest.raises(ModelError, match="exists already"):
        write_model(PRESETS["tiny"], path)
    assert path.read_bytes() == b"mine"
    write_model(PRESETS["tiny"], path, force=True)
    assert path.read_bytes()[:4] == b"GGUF"


def test_too_little_space_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=1000))
    with pytest.raises(ModelError, match="not enough free disk space"):
        write_model(PRESETS["tiny"], folder / "m.gguf")
    assert not list(folder.iterdir())


def test_missing_folder_is_named(folder: Path) -> None:
    with pytest.raises(ModelError, match="is not a folder"):
        write_model(PRESETS["tiny"], folder / "no" / "m.gguf")


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_broken_write_leaves_nothing(folder: Path, failure: BaseException) -> None:
    def fail(done: int) -> None:
        if done > 10_000:
            raise failure

    expected = ModelError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        write_model(PRESETS["tiny"], folder / "m.gguf", shards=3, progress=fail)
    assert not list(folder.iterdir())


def test_ensure_model_writes_once(folder: Path) -> None:
    calls: list[int] = []
    first = ensure_model(PRESETS["tiny"], folder / "new", "tiny", progress=calls.append)
    count = len(calls)
    assert count
    assert ensure_model(PRESETS["tiny"], folder / "new", "tiny", progress=calls.append) == first
    assert len(calls) == count


@given(st.integers(MIN_VOCAB, 5000))
@settings(max_examples=20, deadline=None)
def test_vocabulary_has_distinct_tokens(size: int) -> None:
    vocabulary = build_vocabulary(size)
    assert len(set(vocabulary.tokens)) == size
    assert len(vocabulary.types) == len(vocabulary.speakable) == size
    assert vocabulary.tokens[vocabulary.eos] == "<|endoftext|>"
    assert not vocabulary.speakable[0x1B]
