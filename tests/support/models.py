"""Models for tests, and ways to damage them."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

from swapmoe.models import PRESETS, ModelSpec, write_model


def tiny_spec(preset: str = "tiny", **changes: Any) -> ModelSpec:
    """Return a preset with some fields changed."""
    return replace(PRESETS[preset], **changes)


def make_tiny(folder: Path, preset: str = "tiny", *, shards: int = 1, **changes: Any) -> Path:
    """Write a small model into `folder` and return its first file."""
    spec = tiny_spec(preset, **changes)
    path = folder / f"{preset}-{spec.digest}-{shards}.gguf"
    return write_model(spec, path, shards=shards)[0]


def slice_span(path: Path, tensor: str, expert: int) -> tuple[int, int]:
    """Return (offset, size) of one expert's bytes of a tensor in the file."""
    found = next(t for t in GGUFReader(path).tensors if t.name == tensor)
    size = int(found.n_bytes) // int(found.shape[2])
    return int(found.data_offset) + expert * size, size


def read_slice(path: Path, tensor: str, expert: int) -> bytes:
    """Return one expert's bytes of a tensor."""
    offset, size = slice_span(path, tensor, expert)
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def write_slice(path: Path, tensor: str, expert: int, data: bytes) -> None:
    """Replace the start of one expert's bytes of a tensor."""
    with path.open("r+b") as file:
        file.seek(slice_span(path, tensor, expert)[0])
        file.write(data)


def rotate_experts(source: Path, target: Path, kind: str) -> None:
    """Copy a model, with each expert's part of the tensors of a kind given to the one before it."""
    shutil.copyfile(source, target)
    for tensor in GGUFReader(target, "r+").tensors:
        if f".{kind}.weight" in tensor.name:
            tensor.data[:] = np.roll(tensor.data, -1, axis=0)


def cut_short(path: Path, missing: int = 1024) -> None:
    """Take `missing` bytes off the end of a file."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - missing)
