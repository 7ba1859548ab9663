"""Bounded reader for the header of one GGUF file.

A model file is untrusted input. `GGUFReader` of the `gguf` package maps the file and walks every
array element, which takes seconds on a real vocabulary and trusts every length it meets. This
reader keeps scalars and short strings only, steps over arrays, checks each length against the
bytes that are left before it allocates, and turns every fault into a `ModelError`.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from swapmoe.errors import ModelError

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_KEYS = 65_536
MAX_TENSORS = 1_000_000
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 1_024
MAX_KEY_BYTES = 65_536
MAX_VALUE_BYTES = 64 * 1024 * 1024
MAX_ARRAY_STRINGS = 16_000_000
KEPT_VALUE_BYTES = 4_096
INT64_MAX = 2**63 - 1

STRING = 8
ARRAY = 9
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"}
SCALARS |= {10: "<Q", 11: "<q", 12: "<d"}

Scalar = int | float | bool | str

HINT_REPLACE = "download the file again, or ask its publisher for a current GGUF"


@dataclass(frozen=True)
class Tensor:
    """One row of the tensor table. `offset` counts from the start of the file; sizes in bytes."""

    name: str
    dims: tuple[int, ...]
    type_name: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """What one file says about itself. `metadata` holds scalars and short strings only."""

    path: Path
    file_bytes: int
    version: int
    alignment: int
    metadata: dict[str, Scalar]
    tensors: tuple[Tensor, ...]

    def integer(self, key: str, default: int | None = None) -> int | None:
        """The value of an integer key, or `default` when absent or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def text(self, key: str, default: str = "") -> str:
        """The value of a string key, or `default` when absent or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else default


@cache
def _quant_table() -> dict[int, tuple[str, int, int]]:
    """Type id -> (name, elements per block, bytes per block), from the gguf package."""
    from gguf.constants import GGML_QUANT_SIZES

    return {int(kind): (kind.name, block, size) for kind, (block, size) in GGML_QUANT_SIZES.items()}


class _Cursor:
    """Reads little-endian values and refuses to pass the end of the file."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self.path = path
        self.stream = stream
        self.size = size
        self.at = 0

    def broken(self, what: str) -> ModelError:
        return ModelError(
            f"the header of {self.path.name} is damaged: {what}",
            evidence=[f"file: {self.path}", f"at byte {self.at:,} of {self.size:,}"],
            hint=HINT_REPLACE,
        )

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.at:
            raise ModelError(
                f"{self.path.name} is cut off inside its header, at {what}",
                evidence=[
                    f"file: {self.path}",
                    f"{count:,} bytes wanted at byte {self.at:,}, the file has {self.size:,}",
                ],
                hint="the download did not finish; fetch the file again",
            )
        data = self.stream.read(count)
        if len(data) != count:
            raise self.broken(f"short read at {what}")
        self.at += count
        return data

    def skip(self, count: int, what: str) -> None:
        if count > self.size - self.at:
            self.take(count, what)
        self.stream.seek(count, 1)
        self.at += count

    def number(self, layout: str, what: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout), what))[0]
        return value

    def text(self, limit: int, what: str) -> str:
        length = self.number("<Q", f"the length of {what}")
        if length > limit:
            raise self.broken(f"{what} claims {length:,} bytes (limit {limit:,})")
        return self.take(length, what).decode("utf-8", errors="replace")


def read_header(path: Path) -> Header:
    """Read one file's header. Raises `ModelError` for anything that is not a sound GGUF header."""
    try:
        if path.is_dir():
            raise ModelError(
                f"{path} is a folder, not a model file",
                hint="name the .gguf file (for a split model, any of its shards)",
            )
        if path.exists() and not path.is_file():
            raise ModelError(f"{path} is not a regular file", hint="name the .gguf file")
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            return _parse(_Cursor(path, stream, size))
    except FileNotFoundError:
        raise ModelError(
            f"no such model file: {path}", hint="check the path given with -m"
        ) from None
    except OSError as error:
        raise ModelError(
            f"cannot read {path}", evidence=[error.strerror or str(error)], hint="check permissions"
        ) from None
    except ValueError as error:  # a path with a null byte
        raise ModelError(f"not a usable path: {str(path)!r}", evidence=[str(error)]) from None


def _parse(cursor: _Cursor) -> Header:
    _check_magic(cursor)
    version = cursor.number("<I", "the version")
    if version not in (2, 3):
        raise _bad_version(cursor, version)
    tensor_count = cursor.number("<Q", "the tensor count")
    key_count = cursor.number("<Q", "the key count")
    if tensor_count > MAX_TENSORS:
        raise cursor.broken(f"it claims {tensor_count:,} tensors (limit {MAX_TENSORS:,})")
    if key_count > MAX_KEYS:
        raise cursor.broken(f"it claims {key_count:,} metadata keys (limit {MAX_KEYS:,})")
    metadata = _metadata(cursor, key_count)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= 2**31 or alignment & (alignment - 1):
        raise cursor.broken(f"general.alignment is {alignment!r}, not a power of two")
    tensors = _tensors(cursor, tensor_count, alignment)
    return Header(cursor.path, cursor.size, version, alignment, metadata, tensors)


def _check_magic(cursor: _Cursor) -> None:
    path = cursor.path
    if cursor.size == 0:
        raise ModelError(
            f"{path.name} is empty", evidence=[f"file: {path}"], hint="fetch the file again"
        )
    start = cursor.stream.read(512)
    cursor.stream.seek(0)
    if start.startswith(MAGIC):
        cursor.take(len(MAGIC), "the magic")
        return
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    what, hint = "does not start with the GGUF magic", "give a GGUF model file"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        what, hint = (
            "is a web page, not a model",
            "the download link gave a page; fetch the file itself",
        )
    elif text.startswith(b"version https://git-lfs"):
        what, hint = "is a Git LFS pointer, not the model", "run `git lfs pull` where it came from"
    elif text.startswith((b"ggjt", b"tjgg", b"lmgg", b"ggml", b"fmgg", b"ggmf")):
        what, hint = "is a model in a format older than GGUF", HINT_REPLACE
    raise ModelError(
        f"{path.name} {what}",
        evidence=[f"file: {path}", f"it starts with {start[:16]!r}"],
        hint=hint,
    )


def _bad_version(cursor: _Cursor, version: int) -> ModelError:
    if version and version & 0xFFFF == 0:
        what = "is a big-endian GGUF"
    elif version == 1:
        what = "is GGUF version 1, which llama.cpp no longer reads"
    else:
        what = f"has GGUF version {version}; versions 2 and 3 are supported"
    return ModelError(
        f"{cursor.path.name} {what}", evidence=[f"file: {cursor.path}"], hint=HINT_REPLACE
    )


def _metadata(cursor: _Cursor, count: int) -> dict[str, Scalar]:
    metadata: dict[str, Scalar] = {}
    strings_left = MAX_ARRAY_STRINGS
    for index in range(count):
        key = cursor.text(MAX_KEY_BYTES, f"metadata key {index}")
        kind = cursor.number("<I", f"the type of {key!r}")
        if kind == STRING:
            value = cursor.text(MAX_VALUE_BYTES, f"the value of {key!r}")
            if len(value) <= KEPT_VALUE_BYTES:
                metadata[key] = value
        elif kind == ARRAY:
            strings_left -= _skip_array(cursor, key, strings_left)
        elif kind in SCALARS:
            layout = SCALARS[kind]
            raw = cursor.take(struct.calcsize(layout), f"the value of {key!r}")
            metadata[key] = struct.unpack(layout, raw)[0]
        else:
            raise cursor.broken(f"{key!r} has unknown type {kind}")
    return metadata


def _skip_array(cursor: _Cursor, key: str, strings_left: int) -> int:
    """Step over one array; returns how many strings it held."""
    kind = cursor.number("<I", f"the element type of {key!r}")
    count = cursor.number("<Q", f"the length of {key!r}")
    if kind in SCALARS:
        cursor.skip(count * struct.calcsize(SCALARS[kind]), f"the array {key!r}")
        return 0
    if kind != STRING:
        raise cursor.broken(f"the array {key!r} has element type {kind}")
    if count > strings_left or count * 8 > cursor.size - cursor.at:
        raise cursor.broken(f"the array {key!r} claims {count:,} strings")
    what = f"a string of the array {key!r}"
    for _ in range(count):
        cursor.skip(cursor.number("<Q", what), what)
    return count


def _tensors(cursor: _Cursor, count: int, alignment: int) -> tuple[Tensor, ...]:
    rows: list[tuple[str, tuple[int, ...], str, int, int]] = []
    names: set[str] = set()
    expected = 0
    for index in range(count):
        name = cursor.text(MAX_NAME_BYTES, f"the name of tensor {index}")
        if name in names:
            raise cursor.broken(f"tensor {name!r} appears twice")
        names.add(name)
        dimensions = cursor.number("<I", f"the shape of {name!r}")
        if dimensions > MAX_DIMENSIONS:
            raise cursor.broken(f"tensor {name!r} claims {dimensions} dimensions")
        dims = tuple(cursor.number("<Q", f"the shape of {name!r}") for _ in range(dimensions))
        kind = cursor.number("<I", f"the type of {name!r}")
        offset = cursor.number("<Q", f"the offset of {name!r}")
        type_name, nbytes = _nbytes(cursor.broken, name, dims, kind)
        if offset != expected:
            raise cursor.broken(f"tensor {name!r} has offset {offset:,}, expected {expected:,}")
        expected = _pad(offset + nbytes, alignment)
        rows.append((name, dims, type_name, offset, nbytes))
    data_start = _pad(cursor.at, alignment)
    return tuple(
        Tensor(name, dims, type_name, data_start + offset, nbytes)
        for name, dims, type_name, offset, nbytes in rows
    )


def _nbytes(
    broken: Callable[[str], ModelError], name: str, dims: tuple[int, ...], kind: int
) -> tuple[str, int]:
    if kind not in _quant_table():
        raise broken(f"tensor {name!r} has unknown quantisation type {kind}")
    type_name, block, size = _quant_table()[kind]
    elements = 1
    for dim in dims:
        elements *= dim
        if dim > INT64_MAX or elements > INT64_MAX:
            raise broken(f"tensor {name!r} has an impossible shape {dims}")
    if (dims[0] if dims else 1) % block:
        raise broken(f"tensor {name!r}: rows of {dims[0] if dims else 1} do not fit {type_name}")
    return type_name, elements // block * size


def _pad(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment
