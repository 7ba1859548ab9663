"""Widened copies of small MoE models: more experts, in a block format, all else byte for byte."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.constants import GGUFValueType
from gguf.gguf_reader import ReaderTensor

from swapmoe import model_pack as pack
from swapmoe.errors import ModelError, UsageError
from swapmoe.gguf_info import ROUTED

_PER_EXPERT = re.compile(
    r"blk\.\d+\.(ffn_(gate|up|down|gate_up)_(ch)?exps\.\w+|ffn_gate_inp\.(weight|bias)"
    r"|exp_probs_b(\.\w+)?)"
)
_BY_TOKEN = ".ffn_gate_tid2eid."
# Upstream writes norms of about 0.01, which everything that reaches router and experts carries.
# These gains bring routing and expert output back to where they matter.
_ROUTER_GAIN = 50.0
_EXPERT_GAIN = 10.0
_SMALL = 0.01


@dataclass(frozen=True)
class Widening:
    """How to widen: `experts` per layer, `used` per token, the routed experts' block format."""

    experts: int = 16
    used: int = 4
    type: str = "Q4_0"
    seed: int = 1


@dataclass(frozen=True)
class Widened:
    """What became of a model: routed tensors by new type, and why some kept their type."""

    path: Path
    routed: dict[str, str]
    kept: dict[str, str]

    @property
    def quantised(self) -> int:
        """How many routed tensors are in the wanted block format."""
        return len(self.routed) - len(self.kept)


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the copy: `source` holds its bytes when they stay, None when they are new."""

    name: str
    shape: tuple[int, ...]
    type: str
    source: ReaderTensor | None

    @property
    def nbytes(self) -> int:
        return pack.row_bytes(self.type, prod(self.shape))


def widen(source: Path, target: Path, how: Widening, *, force: bool = False) -> Widened:
    """Write a copy of `source` with more experts and return what was done to it.

    Every tensor with an expert dimension is written anew, seeded, with distinct bytes in each
    slice; metadata but for the expert counts, and all other tensors, are copied as they are.
    Raises UsageError for counts that do not fit and ModelError for a model that cannot be widened,
    an existing target (unless `force`) or a write error.
    """
    if target.exists() and not force:
        raise ModelError(
            f"{target} exists already", hint="choose another name, or pass --force to replace it"
        )
    try:
        reader = GGUFReader(source)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {source}", evidence=[str(error)]) from error
    items, kept = _plan(reader, how)
    partial = target.with_name(target.name + ".part")
    try:
        with partial.open("wb") as out:
            for piece in _file(reader, items, how):
                out.write(piece)
        partial.replace(target)
    except OSError as error:
        raise ModelError(f"cannot write {target}", evidence=[str(error)]) from error
    finally:
        partial.unlink(missing_ok=True)
    routed = {item.name: item.type for item in items if ROUTED.fullmatch(item.name)}
    return Widened(target, routed, kept)


def _number(reader: GGUFReader, name: str, default: int) -> int:
    field = reader.fields.get(f"{_arch(reader)}.{name}")
    if field is None:
        return default
    if field.types != [GGUFValueType.UINT32]:
        raise ModelError(f"{name} is not a single 32-bit number; such models are not widened")
    return int(field.contents())


def _arch(reader: GGUFReader) -> str:
    return str(reader.fields["general.architecture"].contents())


def _plan(reader: GGUFReader, how: Widening) -> tuple[list[_Tensor], dict[str, str]]:
    """Return the tensors of the copy, and the routed ones that keep their type with the reason."""
    old = _number(reader, "expert_count", 0)
    chunk = max(1, _number(reader, "experts_per_group", 1))
    _check_counts(how, chunk, max(1, _number(reader, "expert_group_count", 1)))
    if old == 0 or not any(ROUTED.fullmatch(tensor.name) for tensor in reader.tensors):
        raise ModelError(
            "this model has no routed experts to widen",
            evidence=[f"architecture {_arch(reader)}, expert_count {old}"],
        )
    items: list[_Tensor] = []
    kept: dict[str, str] = {}
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if _BY_TOKEN in tensor.name:
            raise ModelError(
                f"{tensor.name} maps tokens to experts; such models are not widened",
                hint="generate one instead: --preset tiny-deepseek4",
            )
        group = chunk if "_chexps" in tensor.name else 1
        if not _PER_EXPERT.fullmatch(tensor.name) or shape[0] * group != old:
            items.append(_Tensor(tensor.name, shape, tensor.tensor_type.name, tensor))
            continue
        shape = (how.experts // group, *shape[1:])
        kind = tensor.tensor_type.name
        if ROUTED.fullmatch(tensor.name):
            values, _ = pack.block_size(how.type)
            if shape[-1] % values == 0:
                kind = how.type
            else:
                kept[tensor.name] = f"row of {shape[-1]} is not a multiple of {values}"
        items.append(_Tensor(tensor.name, shape, kind, None))
    return items, kept


def _check_counts(how: Widening, chunk: int, groups: int) -> None:
    if how.type not in pack.TENSOR_TYPES:
        raise UsageError(f"type {how.type} is not one of {', '.join(pack.TENSOR_TYPES)}")
    if not 1 <= how.used <= how.experts:
        raise UsageError(f"used ({how.used}) is not between 1 and experts ({how.experts})")
    for count, what in ((chunk, "experts per group"), (groups, "expert groups")):
        if how.experts % count:
            raise UsageError(f"experts ({how.experts}) is not a multiple of {count} {what}")


def _file(reader: GGUFReader, items: list[_Tensor], how: Widening) -> Iterator[bytes | memoryview]:
    """Yield the file: header and metadata as they are but for two counts, then the tensors."""
    align = int(reader.alignment)
    sizes = [-(-item.nbytes // align) * align for item in items]
    offsets = [0, *accumulate(sizes)]
    head = bytearray(reader.data[: reader.tensors[0].field.offset].tobytes())
    for name, value in (("expert_count", how.experts), ("expert_used_count", how.used)):
        field = reader.fields[f"{_arch(reader)}.{name}"]
        end = field.offset + sum(int(part.nbytes) for part in field.parts)
        struct.pack_into("<I", head, end - 4, value)
    for item, offset in zip(items, offsets, strict=False):
        label = item.name.encode()
        dims = tuple(reversed(item.shape))
        head += struct.pack(f"<Q{len(label)}sI{len(dims)}Q", len(label), label, len(dims), *dims)
        head += struct.pack("<IQ", int(GGMLQuantizationType[item.type]), offset)
    yield bytes(head) + bytes(-len(head) % align)
    for item, size in zip(items, sizes, strict=True):
        yield from _data(item, how)
        yield bytes(size - item.nbytes)


def _data(item: _Tensor, how: Widening) -> Iterator[memoryview]:
    if item.source is not None:
        yield np.ascontiguousarray(item.source.data).view(np.uint8).reshape(-1).data
        return
    for expert in range(item.shape[0]):
        yield _slice(item, how, expert).data


def _slice(item: _Tensor, how: Widening, expert: int) -> pack.Bytes:
    """Return one expert's part of a tensor."""
    count = prod(item.shape[1:])
    if item.name.endswith(("exps.scale", "exps.input_scale")):
        values = 1 + pack.random_floats(how.seed, item.name, expert, count, 0.1)
        return pack.convert_rows(values, item.type)
    std = _SMALL
    if item.name.endswith("exps.weight"):
        std = _EXPERT_GAIN / item.shape[-1] ** 0.5
    elif item.name.endswith("ffn_gate_inp.weight"):
        std = _ROUTER_GAIN / item.shape[-1] ** 0.5
    return pack.random_tensor(how.seed, item.name, expert, item.type, count, std)
