"""Random tensor bytes for generated models: seeded, of a chosen spread, in many block formats."""

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from gguf import GGMLQuantizationType, quants
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BlockFormat:
    """A quantised block: random bytes, with the scales overwritten.

    `fields` are (byte offset, factor) pairs: each fp16 there becomes factor * scale. The factors of
    the minimum fields centre the values around zero. `nibbles` is the offset of four 16-bit words
    whose highest four bits hold the fp16 scale, lowest part first. Without either the first byte is
    the scale's power of two, with 128 for 1.
    """

    fields: tuple[tuple[int, float], ...] = ()
    nibbles: int | None = None


BLOCK_FORMATS = {
    "Q4_0": BlockFormat(((0, 1.0),)),
    "Q4_1": BlockFormat(((0, 1.0), (2, -7.5))),
    "Q5_0": BlockFormat(((0, 1.0),)),
    "Q5_1": BlockFormat(((0, 1.0), (2, -15.5))),
    "Q8_0": BlockFormat(((0, 1.0),)),
    "Q2_K": BlockFormat(((80, 1.0), (82, 1.5))),
    "Q3_K": BlockFormat(((108, 1.0),)),
    "Q4_K": BlockFormat(((0, 1.0), (2, 7.5))),
    "Q5_K": BlockFormat(((0, 1.0), (2, 15.5))),
    "Q6_K": BlockFormat(((208, 1.0),)),
    "IQ1_M": BlockFormat(nibbles=48),
    "IQ2_XXS": BlockFormat(((0, 1.0),)),
    "IQ4_NL": BlockFormat(((0, 1.0),)),
    "IQ4_XS": BlockFormat(((0, 1.0),)),
    "MXFP4": BlockFormat(),
}
FLOAT_TYPES = ("F32", "F16")
TENSOR_TYPES = (*FLOAT_TYPES, *BLOCK_FORMATS)
# Types that float rows (embeddings) can be converted to.
ROW_TYPES = (*FLOAT_TYPES, "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


def block_size(type_name: str) -> tuple[int, int]:
    """Return (values per block, bytes per block)."""
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    return values, size


def row_bytes(type_name: str, length: int) -> int:
    """Return the bytes of one row of `length` values, a multiple of the block's values."""
    values, size = block_size(type_name)
    return length // values * size


def random_bytes(seed: int, name: str, index: int, count: int) -> Bytes:
    """Return `count` bytes that depend on nothing but (seed, name, index), on any NumPy version."""
    digest = hashlib.blake2b(f"{seed}/{name}/{index}".encode(), digest_size=16).digest()
    source = np.random.SFC64(int.from_bytes(digest, "little"))
    words = source.random_raw(-(-count // 8)).astype("<u8", copy=False)
    return words.view(np.uint8)[:count]


def random_floats(seed: int, name: str, index: int, count: int, std: float) -> Floats:
    """Return `count` uniformly distributed values with mean 0 and standard deviation `std`."""
    levels = random_bytes(seed, name, index, 2 * count).view("<u2").astype(np.float32)
    return (levels - np.float32(32767.5)) * np.float32(std * 3**0.5 / 32768)


@lru_cache
def _unit_std(type_name: str) -> float:
    """Return the standard deviation of random blocks of scale 1."""
    blocks = random_bytes(0, type_name, 0, 512 * block_size(type_name)[1])
    _set_scales(blocks, type_name, 1.0)
    return float(quants.dequantize(blocks, GGMLQuantizationType[type_name]).std())


def _set_scales(data: Bytes, type_name: str, scale: float) -> None:
    blocks = data.reshape(-1, block_size(type_name)[1])
    fields, nibbles = BLOCK_FORMATS[type_name].fields, BLOCK_FORMATS[type_name].nibbles
    if nibbles is not None:
        bits = int(np.array(scale, "<f2").view("<u2"))
        for part, column in enumerate(range(nibbles + 1, nibbles + 8, 2)):
            sign = blocks[:, column] & (0x80 if part == 3 else 0)
            blocks[:, column] = blocks[:, column] & 0x0F | bits >> 4 * part << 4 & 0xF0 | sign
        return
    if not fields:
        # Powers of two only: as many blocks have the larger neighbour as the spread asks for.
        low = math.floor(math.log2(scale))
        share = ((scale / 2.0**low) ** 2 - 1) / 3
        blocks[:, 0] = 128 + low + (blocks[:, 0] < 256 * share)
        return
    # Half of the blocks have a negative scale: the codes are off centre (-8..7), and a mean that
    # all weights share would drown everything else within a few layers.
    signs = blocks[:, fields[0][0]] & 0x80
    for offset, factor in fields:
        low, high = np.array([factor * scale], "<f2").view(np.uint8)
        blocks[:, offset] = low
        blocks[:, offset + 1] = high ^ signs


def random_tensor(
    seed: int, name: str, index: int, type_name: str, count: int, std: float
) -> Bytes:
    """Return `count` random values of standard deviation `std`, as bytes of `type_name`."""
    if type_name in FLOAT_TYPES:
        return convert_rows(random_floats(seed, name, index, count, std), type_name)
    data = random_bytes(seed, name, index, row_bytes(type_name, count))
    _set_scales(data, type_name, std / _unit_std(type_name))
    return data


def convert_rows(values: Floats, type_name: str) -> Bytes:
    """Return float rows as bytes of one of ROW_TYPES."""
    if type_name == "F32":
        return np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8)
    if type_name == "F16":
        return values.astype("<f2").reshape(-1).view(np.uint8)
    packed: Bytes = quants.quantize(values, GGMLQuantizationType[type_name]).reshape(-1)
    return packed
