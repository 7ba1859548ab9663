"""Generated Mixture-of-Experts models: deterministic GGUF files, from KB to larger than RAM."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGUFValueType

from swapmoe import model_pack as pack
from swapmoe.errors import ModelError, UsageError
from swapmoe.gguf_keys import add_key
from swapmoe.model_archs import ARCHITECTURES
from swapmoe.model_presets import PRESETS
from swapmoe.model_spec import ModelSpec, Tensor, check, tensors, total_bytes
from swapmoe.model_vocab import Vocabulary, build_vocabulary
from swapmoe.paths import lock

__all__ = ["PRESETS", "ModelSpec", "ensure_model", "shard_paths", "total_bytes", "write_model"]

CHUNK_BYTES = 4 << 20
DISK_RESERVE = 64 << 20


def shard_paths(path: Path, shards: int) -> list[Path]:
    """Return the files a model of `shards` parts consists of, in llama.cpp's naming."""
    if shards == 1:
        return [path]
    stem = path.name.removesuffix(".gguf")
    return [path.with_name(f"{stem}-{n:05}-of-{shards:05}.gguf") for n in range(1, shards + 1)]


def _split(items: list[Tensor], shards: int) -> list[list[Tensor]]:
    """Cut the tensors, in order, into parts of about equal bytes, none empty."""
    total = sum(tensor.nbytes for tensor in items)
    cuts = [0]
    done = 0
    for index, tensor in enumerate(items):
        left = shards - len(cuts)
        if (
            left
            and index > cuts[-1]
            and (done >= total * len(cuts) / shards or len(items) - index <= left)
        ):
            cuts.append(index)
        done += tensor.nbytes
    return [items[start:end] for start, end in pairwise([*cuts, len(items)])]


def _embedding_rows(spec: ModelSpec, tensor: Tensor, index: int, rows: int) -> pack.Floats:
    """Return unit-variance rows; the common part sits in the first quarter of the dimensions."""
    shared = pack.random_floats(
        spec.seed, tensor.name + "/shared", 0, spec.embd // 4, 2 * spec.locality**0.5
    )
    own_std = (1 - spec.locality) ** 0.5
    values = pack.random_floats(spec.seed, tensor.name, index, rows * spec.embd, own_std).reshape(
        rows, spec.embd
    )
    values[:, : spec.embd // 4] += shared
    return values


def _chunks(spec: ModelSpec, tensor: Tensor, vocabulary: Vocabulary) -> Iterator[pack.Bytes]:
    """Yield a tensor's bytes in pieces: whole experts, else whole rows."""
    if tensor.role in ("ones", "sharp"):
        value = 2 if tensor.role == "sharp" else 1
        yield pack.convert_rows(np.full(tensor.shape, value, np.float32), tensor.type)
        return
    if tensor.role == "last-norm":
        # What all tokens have in common says nothing about the next one: left out of the output.
        norm = np.full(tensor.shape, (1 - spec.locality) ** -0.5, np.float32)
        norm[: spec.embd // 4] = 0
        yield pack.convert_rows(norm, tensor.type)
        return
    if tensor.role == "near-one":
        factors = 1 + pack.random_floats(spec.seed, tensor.name, 0, prod(tensor.shape), tensor.std)
        yield pack.convert_rows(factors, tensor.type)
        return
    if len(tensor.shape) == 3:
        count = prod(tensor.shape[1:])
        for expert in range(tensor.shape[0]):
            yield pack.random_tensor(spec.seed, tensor.name, expert, tensor.type, count, tensor.std)
        return
    width = tensor.shape[-1]
    total = prod(tensor.shape[:-1])
    step = max(1, CHUNK_BYTES // (4 * width))
    for index, start in enumerate(range(0, total, step)):
        rows = min(step, total - start)
        if tensor.role == "ids":
            keys = pack.random_floats(spec.seed, tensor.name, index, rows * spec.experts, 1)
            order = keys.reshape(rows, spec.experts).argsort(axis=1, kind="stable")
            yield np.ascontiguousarray(order[:, :width], "<i4").reshape(-1).view(np.uint8)
        elif tensor.role == "embedding":
            yield pack.convert_rows(_embedding_rows(spec, tensor, index, rows), tensor.type)
        elif tensor.role == "output":
            values = pack.random_floats(
                spec.seed, tensor.name, index, rows * width, tensor.std
            ).reshape(rows, width)
            values[~np.array(vocabulary.speakable[start : start + rows])] = 0
            yield pack.convert_rows(values, tensor.type)
        else:
            yield pack.random_tensor(
                spec.seed, tensor.name, index, tensor.type, rows * width, tensor.std
            )


def _add_metadata(writer: GGUFWriter, spec: ModelSpec, vocabulary: Vocabulary) -> None:
    writer.add_name(f"swapmoe generated {spec.arch}")
    writer.add_description(json.dumps(spec.shape))
    writer.add_context_length(spec.ctx)
    writer.add_embedding_length(spec.embd)
    writer.add_block_count(spec.layers + spec.mtp_layers)
    writer.add_feed_forward_length(spec.ffn)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    arch = ARCHITECTURES[spec.arch]
    if "ffn_down_exps" in arch.names:
        writer.add_expert_count(spec.experts)
        writer.add_expert_used_count(spec.used)
        writer.add_expert_feed_forward_length(spec.ffn)
    if "ffn_up_shexp" in arch.names:
        writer.add_expert_shared_feed_forward_length(spec.shared_ffn)
    for key, value in arch.keys(spec).items():
        add_key(writer, f"{spec.arch}.{key}", value)
    writer.add_vocab_size(spec.vocab)
    writer.add_quantization_version(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(vocabulary.eos)
    writer.add_eos_token_id(vocabulary.eos)
    writer.add_add_bos_token(False)


def _check_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    needed += DISK_RESERVE
    if free < needed:
        raise ModelError(
            "not enough free disk space for this model",
            evidence=[f"{directory}: {free / 1e9:.2f} GB free, {needed / 1e9:.2f} GB needed"],
            hint="write it elsewhere, or make it smaller (--layers, --experts)",
        )


def write_model(
    spec: ModelSpec,
    path: Path,
    *,
    shards: int = 1,
    force: bool = False,
    progress: Callable[[int], object] = lambda done: None,
) -> list[Path]:
    """Write the model and return its files; `progress` is told the tensor bytes written so far.

    The files appear under their names only when complete. Raises UsageError for a shape that does
    not work and ModelError for an existing file (unless `force`), a full disk or a write error.
    """
    check(spec)
    items = tensors(spec)
    if not 1 <= shards <= len(items):
        raise UsageError(f"{shards} shards do not work for {len(items)} tensors")
    targets = shard_paths(path, shards)
    existing = [target for target in targets if target.exists()]
    if existing and not force:
        raise ModelError(
            f"{existing[0]} exists already",
            hint="choose another name, or pass --force to replace it",
        )
    if not path.parent.is_dir():
        raise ModelError(f"{path.parent} is not a folder", hint=f"mkdir -p {path.parent}")
    _check_space(path.parent, sum(tensor.nbytes for tensor in items))
    partials = [target.with_name(target.name + ".part") for target in targets]
    try:
        vocabulary = build_vocabulary(spec.vocab)
        done = 0
        for number, (partial, part) in enumerate(zip(partials, _split(items, shards), strict=True)):
            for count in _write_file(spec, vocabulary, partial, part, (number, shards, len(items))):
                done += count
                progress(done)
        # The first shard last: without it the others are not a model.
        for partial, target in reversed(list(zip(partials, targets, strict=True))):
            partial.replace(target)
    except OSError as error:
        raise ModelError(f"cannot write {path}", evidence=[str(error)]) from error
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)
    return targets


def _write_file(
    spec: ModelSpec,
    vocabulary: Vocabulary,
    path: Path,
    items: list[Tensor],
    split: tuple[int, int, int],
) -> Iterator[int]:
    """Write one file, yielding the size of each piece; `split` is (number, files, tensors)."""
    number, shards, total = split
    writer = GGUFWriter(path, spec.arch)
    if number == 0:
        _add_metadata(writer, spec, vocabulary)
    if shards > 1:
        writer.add_key_value("split.no", number, GGUFValueType.UINT16)
        writer.add_key_value("split.count", shards, GGUFValueType.UINT16)
        writer.add_key_value("split.tensors.count", total, GGUFValueType.INT32)
    for tensor in items:
        # The raw type is what counts; the NumPy type only says that the shape is in values.
        raw = GGMLQuantizationType[tensor.type]
        values = np.dtype(np.float32)
        writer.add_tensor_info(tensor.name, tensor.shape, values, tensor.nbytes, raw)
    with closing(writer):
        writer.open_output_file()
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        out = writer.fout[0]
        writer.write_padding(out, out.tell())
        for tensor in items:
            for chunk in _chunks(spec, tensor, vocabulary):
                out.write(chunk.data)
                yield chunk.nbytes
            writer.write_padding(out, tensor.nbytes)


def ensure_model(
    spec: ModelSpec,
    directory: Path,
    name: str,
    *,
    shards: int = 1,
    progress: Callable[[int], object] = lambda done: None,
) -> Path:
    """Return the model's first file in `directory`, writing the model when it is not there yet.

    Raises as write_model does.
    """
    path = directory / f"{name}-{spec.digest}.gguf"
    targets = shard_paths(path, shards)
    with lock(path):
        if not all(target.exists() for target in targets):
            write_model(spec, path, shards=shards, force=True, progress=progress)
    return targets[0]
