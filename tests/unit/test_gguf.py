"""Model files as users have them: whole, split, cut, old, and not models at all."""

import os
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swapmoe import gguf_info
from swapmoe.errors import ModelError
from swapmoe.gguf_info import inspect, require_streamable
from tests.support.headers import (
    ARRAY,
    F32,
    MOE,
    ROWS,
    STRING,
    U32,
    Row,
    experts,
    gguf,
    pair,
    text,
    write,
    write_shards,
)
from tests.support.models import make_tiny, tiny_spec

WHOLE = gguf(MOE, ROWS)


def refused(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        require_streamable(inspect(path))
    return caught.value


def test_facts_of_a_generated_model(tmp_path: Path) -> None:
    facts = inspect(make_tiny(tmp_path))
    assert facts.architecture == "qwen2moe"
    assert facts.slices == 24 == tiny_spec().slices
    assert {tensor.slice_bytes for tensor in facts.routed} == {tiny_spec().slice_bytes}
    assert (facts.block_count, facts.expert_count, facts.expert_used_count) == (2, 4, 2)
    assert facts.routed_bytes < facts.tensor_bytes < facts.file_bytes
    require_streamable(facts)


def test_a_split_generated_model(tmp_path: Path) -> None:
    first = make_tiny(tmp_path, shards=3)
    whole = inspect(make_tiny(tmp_path))
    facts = inspect(first)
    assert len(facts.shards) == 3
    assert facts.slices == whole.slices
    assert facts.tensor_bytes == whole.tensor_bytes


@pytest.mark.parametrize(
    ("name", "routed"),
    [
        ("blk.0.ffn_gate_exps.weight", True),
        ("blk.0.ffn_up_exps.weight", True),
        ("blk.0.ffn_down_exps.weight", True),
        ("blk.12.ffn_gate_up_exps.weight", True),
        ("blk.0.ffn_gate_shexp.weight", False),
        ("blk.0.ffn_gate_exps.bias", False),
        ("blk.0.ffn_gate_exps.scale", False),
        ("blk.0.ffn_gate_inp.weight", False),
        ("blk.0.ffn_gate_chexps.weight", False),
        ("blk.0.ffn_gate.weight", False),
        ("blk.0.ffn_gate_exps.weight\n", False),
        ("ablk.0.ffn_gate_exps.weight", False),
        ("blk..ffn_gate_exps.weight", False),
        ("blk.0.ffn_side_exps.weight", False),
    ],
)
def test_the_one_pattern(name: str, routed: bool) -> None:
    assert bool(gguf_info.ROUTED.fullmatch(name)) == routed


def test_fused_experts_are_routed(tmp_path: Path) -> None:
    rows = experts(0, "gate_up", "down") + experts(0, "gate_ch")
    facts = inspect(write(tmp_path / "f.gguf", gguf(MOE, rows[:2])))
    assert [tensor.name for tensor in facts.routed] == [row.name for row in rows[:2]]
    assert facts.slices == 8


def test_expert_like_tensors_are_named_not_streamed(tmp_path: Path) -> None:
    rows = [*ROWS, Row("blk.0.ffn_up_chexps.weight", (64, 32, 2))]
    facts = inspect(write(tmp_path / "f.gguf", gguf(MOE, rows)))
    assert facts.expert_like == ("blk.0.ffn_up_chexps.weight",)
    assert facts.slices == 24


def test_a_large_vocabulary_is_stepped_over_quickly(tmp_path: Path) -> None:
    words = b"".join(text(f"word{n}") for n in range(150_000))
    tokens = struct.pack("<IQ", STRING, 150_000) + words
    scores = struct.pack("<IQ", 6, 150_000) + bytes(600_000)
    pairs = {"tokenizer.tokens": (ARRAY, tokens), "tokenizer.scores": (ARRAY, scores), **MOE}
    path = write(tmp_path / "v.gguf", gguf(pairs, ROWS))
    started = time.monotonic()
    assert inspect(path).slices == 24
    assert time.monotonic() - started < 3


class TestShards:
    def test_any_shard_will_do(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path)
        for path in paths:
            facts = inspect(path)
            assert facts.path == paths[0]
            assert facts.shards == tuple(paths)
            assert facts.slices == 24

    def test_missing_shards_are_named(self, tmp_path: Path) -> None:
        first, second, _ = write_shards(tmp_path)
        second.unlink()
        assert "1 of 3 shards missing: big model-00002-of-00003.gguf" in refused(first).message

    def test_a_cut_shard_is_named(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path)
        with paths[1].open("r+b") as file:
            file.truncate(paths[1].stat().st_size - 64)
        error = refused(paths[0])
        assert "big model-00002-of-00003.gguf is cut off: tensor" in error.message

    def test_a_renamed_shard(self, tmp_path: Path) -> None:
        path = write_shards(tmp_path)[0].rename(tmp_path / "model.gguf")
        assert "its name does not" in refused(path).message

    def test_shards_of_different_models(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path)
        paths[2].write_bytes(paths[1].read_bytes())
        assert "is not shard 3 of 3" in refused(paths[0]).message
        write_shards(tmp_path / "b", count=2, stem="x")
        write_shards(tmp_path / "b", count=3, stem="x")
        few = gguf({"split.no": (2, b"\2\0"), "split.count": (2, b"\3\0")}, ROWS[:1])
        write(tmp_path / "b" / "x-00003-of-00003.gguf", few)
        assert "promises" in refused(tmp_path / "b" / "x-00001-of-00003.gguf").message


class TestNotAModel:
    def test_missing_folder_and_unreadable(self, tmp_path: Path) -> None:
        assert "no such model file" in refused(tmp_path / "none.gguf").message
        assert "is a folder" in refused(tmp_path).message
        assert "not a usable path" in refused(Path("a\0b")).message
        os.mkfifo(tmp_path / "pipe")
        assert "is not a regular file" in refused(tmp_path / "pipe").message

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (b"", "is empty"),
            (b"\n <!DOCTYPE html><html>", "is a web page"),
            (b"\xef\xbb\xbf<html>", "is a web page"),
            (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
            (b"ggml\1\0\0\0", "older than GGUF"),
            (b"PK\3\4" + bytes(100), "does not start with the GGUF magic"),
            (b"GGU", "does not start with the GGUF magic"),
            (b"GGUF", "is cut off inside its header"),
            (b"GGUF" + struct.pack("<I", 1) + bytes(64), "GGUF version 1"),
            (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
            (b"GGUF" + struct.pack("<I", 9) + bytes(64), "GGUF version 9"),
        ],
    )
    def test_what_it_is_instead(self, tmp_path: Path, data: bytes, says: str) -> None:
        assert says in refused(write(tmp_path / "x.gguf", data)).message

    def test_old_layout_is_not_called_corrupt(self, tmp_path: Path) -> None:
        rows = [
            Row(f"blk.0.ffn_{part}.{n}.weight", (64, 32))
            for part in ("gate", "up", "down")
            for n in range(4)
        ]
        error = refused(write(tmp_path / "m.gguf", gguf({"general.architecture": "llama"}, rows)))
        assert "pre-2024 expert layout" in error.message
        assert "replace it" in error.hint
        assert "corrupt" not in str((error.message, error.evidence, error.hint))

    def test_dense(self, tmp_path: Path) -> None:
        error = refused(make_tiny(tmp_path, "tiny-dense"))
        assert "no routed experts" in error.message
        assert error.exit_code == 9

    @pytest.mark.parametrize("missing", [1, 1024])
    def test_cut(self, tmp_path: Path, missing: int) -> None:
        rows = [*ROWS, Row("output.weight", (64, 64), F32)]
        path = write(tmp_path / "cut.gguf", gguf(MOE, rows)[:-missing])
        error = refused(path)
        assert f"cut.gguf is cut off: tensor output.weight ends {missing:,} bytes" in error.message


class TestHostile:
    """Each length and count that a file can lie about."""

    @pytest.mark.parametrize(
        "data",
        [
            struct.pack("<IQQ", 3, 2**63, 0),
            struct.pack("<IQQ", 3, 0, 2**63),
            struct.pack("<IQQ", 3, 0, 60_000),
            struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**64 - 1),
            struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 99),
            struct.pack("<IQQ", 3, 0, 1) + pair("k", (STRING, struct.pack("<Q", 2**62))),
            struct.pack("<IQQ", 3, 0, 1) + pair("k", (ARRAY, struct.pack("<IQ", STRING, 2**40))),
            struct.pack("<IQQ", 3, 0, 1) + pair("k", (ARRAY, struct.pack("<IQ", U32, 2**62))),
            struct.pack("<IQQ", 3, 0, 1) + pair("k", (ARRAY, struct.pack("<IQ", ARRAY, 1))),
            struct.pack("<IQQ", 3, 0, 1) + pair("general.alignment", 0),
            struct.pack("<IQQ", 3, 0, 1) + pair("general.alignment", 24),
            struct.pack("<IQQ", 3, 0, 1) + pair("general.alignment", "32"),
            struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I", 2**31),
            struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I4QIQ", 4, *[2**40] * 4, 0, 0),
            struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 32, 4, 0),
            struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 33, 2, 0),
            struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<IQIQ", 1, 32, 0, 2**64 - 32),
            struct.pack("<IQQ", 3, 2, 0) + 2 * (text("t") + struct.pack("<IQIQ", 1, 0, 0, 0)),
        ],
    )
    def test_is_refused_at_once(self, tmp_path: Path, data: bytes) -> None:
        path = write(tmp_path / "h.gguf", b"GGUF" + data + bytes(64))
        started = time.monotonic()
        refused(path)
        assert time.monotonic() - started < 1

    @pytest.mark.parametrize("dims", [(64, 32, 0), (64,), (64, 32)])
    def test_experts_of_an_odd_shape(self, tmp_path: Path, dims: tuple[int, ...]) -> None:
        row = Row("blk.0.ffn_up_exps.weight", dims)
        path = write(tmp_path / "odd.gguf", gguf(MOE, [row]))
        if dims[-1] == 0:
            assert "cannot hold experts" in refused(path).message
        else:
            assert inspect(path).slices == 1


def _look(folder: Path, data: bytes) -> None:
    path = folder / "fuzz.gguf"
    path.write_bytes(data)
    started = time.monotonic()
    with suppress(ModelError):
        require_streamable(inspect(path))
    assert time.monotonic() - started < 2


FUZZ = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(st.binary(max_size=400))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    _look(tmp_path, data)
    _look(tmp_path, b"GGUF\3\0\0\0" + data)


@FUZZ
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=8),
    st.integers(0, len(WHOLE)),
)
def test_a_damaged_model(tmp_path: Path, changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(WHOLE)
    for at, value in changes:
        data[at] = value
    _look(tmp_path, bytes(data[: length or len(data)]))


@FUZZ
@given(
    st.lists(
        st.tuples(
            st.text(max_size=30) | st.sampled_from([row.name for row in ROWS]),
            st.lists(st.integers(0, 2**64 - 1), max_size=5),
            st.integers(0, 60),
            st.integers(0, 2**64 - 1) | st.just(0),
        ),
        max_size=4,
    )
)
def test_any_tensor_table(tmp_path: Path, table: list[tuple[str, list[int], int, int]]) -> None:
    rows = b"".join(
        text(name)
        + struct.pack("<I", len(dims))
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
        for name, dims, kind, offset in table
    )
    _look(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, len(table), 0) + rows)
