"""Header-only GGUF files: metadata, a tensor table and as many zero bytes as it promises."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

U16, U32, I32, STRING, ARRAY = 2, 4, 5, 8, 9
F32, F16, Q4_0, Q2_K, Q4_K, Q6_K, IQ1_M = 0, 1, 2, 10, 12, 14, 29
BLOCKS = {
    F32: (1, 4),
    F16: (1, 2),
    Q4_0: (32, 18),
    Q2_K: (256, 84),
    Q4_K: (256, 144),
    Q6_K: (256, 210),
    IQ1_M: (256, 56),
}


def text(value: str | bytes) -> bytes:
    """A GGUF string."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str, value: object) -> bytes:
    """A metadata entry: str, int (u32), list of int (u32), or (type, raw bytes)."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", U32, value)
    if isinstance(value, list):
        raw = struct.pack(f"<IQ{len(value)}I", U32, len(value), *value)
        return text(key) + struct.pack("<I", ARRAY) + raw
    assert isinstance(value, tuple)
    return text(key) + struct.pack("<I", value[0]) + value[1]


@dataclass(frozen=True)
class Row:
    """A tensor: name, dimensions fastest first, GGML type."""

    name: str
    dims: tuple[int, ...]
    type: int = Q4_0

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        count = 1
        for dim in self.dims:
            count *= dim
        block, size = BLOCKS[self.type]
        return count // block * size


def head(
    pairs: Mapping[str, object], rows: Sequence[Row], alignment: int = 32
) -> tuple[bytes, int]:
    """A header, padded, and how many bytes of data it promises."""
    start = b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(pairs))
    parts = [start, *(pair(key, value) for key, value in pairs.items())]
    offset = 0
    for row in rows:
        parts += [text(row.name), struct.pack("<I", len(row.dims))]
        parts += [struct.pack(f"<{len(row.dims)}Q", *row.dims)]
        parts += [struct.pack("<IQ", row.type, offset)]
        offset = -(-(offset + row.nbytes) // alignment) * alignment
    data = b"".join(parts)
    return data + bytes(-len(data) % alignment), offset


def gguf(pairs: Mapping[str, object], rows: Sequence[Row], alignment: int = 32) -> bytes:
    """A whole file."""
    data, size = head(pairs, rows, alignment)
    return data + bytes(size)


def write_sparse(path: Path, pairs: Mapping[str, object], rows: Sequence[Row]) -> Path:
    """A whole file whose data takes no space on disk."""
    data, size = head(pairs, rows)
    write(path, data)
    with path.open("r+b") as file:
        file.truncate(len(data) + size)
    return path


def experts(layer: int, *parts: str, count: int = 4) -> list[Row]:
    """Routed tensors of one layer."""
    return [Row(f"blk.{layer}.ffn_{part}_exps.weight", (64, 32, count)) for part in parts]


MOE = {
    "general.architecture": "qwen2moe",
    "qwen2moe.block_count": 2,
    "qwen2moe.expert_count": 4,
    "qwen2moe.expert_used_count": 2,
}
ROWS = [
    Row("token_embd.weight", (64, 100), F32),
    *experts(0, "gate", "up", "down"),
    *experts(1, "gate", "up", "down"),
    Row("blk.1.ffn_gate_shexp.weight", (64, 32)),
]


def write(path: Path, data: bytes) -> Path:
    """Write a file, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_shards(folder: Path, count: int = 3, stem: str = "big model") -> list[Path]:
    """A split model: the metadata in each shard, the tensors spread over them."""
    paths = []
    for number in range(count):
        extra = {
            "split.no": (U16, struct.pack("<H", number)),
            "split.count": (U16, struct.pack("<H", count)),
            "split.tensors.count": (I32, struct.pack("<i", len(ROWS))),
        }
        pairs = {**(MOE if number == 0 else {}), **extra}
        path = folder / f"{stem}-{number + 1:05}-of-{count:05}.gguf"
        paths.append(write(path, gguf(pairs, ROWS[number::count])))
    return paths
