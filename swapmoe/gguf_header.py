"""Bounded reader for the header of one GGUF file.

A model file is untrusted input. `GGUFReader` of the `gguf` package maps the file and walks every
array element, which takes seconds on a real vocabulary and trusts every length it meets. This
reader keeps scalars, short strings and short arrays of numbers, steps over the rest, checks each
length against the bytes that are left before it allocates, and turns every fault into a
`ModelError`.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from swapmoe.errors import ModelError
from swapmoe.gguf_cursor import Cursor
from swapmoe.gguf_magic import bad_version, check_magic

DEFAULT_ALIGNMENT = 32
MAX_KEYS = 65_536
MAX_TENSORS = 65_536
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 1_024
MAX_KEY_BYTES = 65_536
MAX_ARRAY_STRINGS = 2_000_000
KEPT_VALUE_BYTES = 4_096
KEPT_ARRAY_LENGTH = 1_024
"""Per-layer arrays are kept: llama.cpp has at most 512 layers."""
KEPT_NUMBERS = 262_144
INT64_MAX = 2**63 - 1

STRING = 8
ARRAY = 9
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"}
SCALARS |= {10: "<Q", 11: "<q", 12: "<d"}

Scalar = int | float | bool | str
Numbers = tuple[int | float | bool, ...]


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
    """What one file says about itself; `data_start` is where the tensors' data begins.

    `metadata` holds scalars and short strings, `arrays` short arrays of numbers.
    """

    path: Path
    file_bytes: int
    version: int
    alignment: int
    data_start: int
    metadata: dict[str, Scalar]
    arrays: dict[str, Numbers]
    tensors: tuple[Tensor, ...]

    @property
    def data_end(self) -> int:
        """Where the last tensor's data ends, the least size of a whole file; 0 without tensors."""
        return max((t.offset + t.nbytes for t in self.tensors), default=0)

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


def row_bytes(type_name: str, elements: int) -> int:
    """Bytes of a row of a type; elements that do not fill a block count as a whole one."""
    _, length, size = _by_name()[type_name.lower()]
    return -(-elements // length) * size


def block_length(type_name: str) -> int:
    """Elements in a block of a type."""
    return _by_name()[type_name.lower()][1]


@cache
def _by_name() -> dict[str, tuple[str, int, int]]:
    """The types as llama.cpp's options and logs name them (`q8_0`)."""
    return {row[0].lower(): row for row in _quant_table().values()}


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
            return _parse(Cursor(path, stream, size))
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


def _parse(cursor: Cursor) -> Header:
    check_magic(cursor)
    version = cursor.number("<I", "the version")
    if version not in (2, 3):
        raise bad_version(cursor, version)
    tensor_count = cursor.number("<Q", "the tensor count")
    key_count = cursor.number("<Q", "the key count")
    if tensor_count > MAX_TENSORS:
        raise cursor.broken(f"it claims {tensor_count:,} tensors (limit {MAX_TENSORS:,})")
    if key_count > MAX_KEYS:
        raise cursor.broken(f"it claims {key_count:,} metadata keys (limit {MAX_KEYS:,})")
    metadata, arrays = _metadata(cursor, key_count)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= 2**31 or alignment & (alignment - 1):
        raise cursor.broken(f"general.alignment is {alignment!r}, not a power of two")
    tensors = _tensors(cursor, tensor_count, alignment)
    start = _pad(cursor.at, alignment)
    return Header(cursor.path, cursor.size, version, alignment, start, metadata, arrays, tensors)


def _metadata(cursor: Cursor, count: int) -> tuple[dict[str, Scalar], dict[str, Numbers]]:
    metadata: dict[str, Scalar] = {}
    arrays: dict[str, Numbers] = {}
    strings_left, numbers_left = MAX_ARRAY_STRINGS, KEPT_NUMBERS
    for index in range(count):
        key = cursor.text(MAX_KEY_BYTES, f"metadata key {index}")
        kind = cursor.number("<I", f"the type of {key!r}")
        if kind == STRING:
            _keep_text(cursor, key, metadata)
        elif kind == ARRAY:
            kind = cursor.number("<I", f"the element type of {key!r}")
            length = cursor.number("<Q", f"the length of {key!r}")
            if kind == STRING:
                strings_left -= _skip_strings(cursor, key, length, strings_left)
            elif kind not in SCALARS:
                raise cursor.broken(f"the array {key!r} has element type {kind}")
            elif length <= min(KEPT_ARRAY_LENGTH, numbers_left):
                numbers_left -= length
                layout = f"<{length}{SCALARS[kind][1]}"
                raw = cursor.take(struct.calcsize(layout), f"the array {key!r}")
                arrays[key] = struct.unpack(layout, raw)
            else:
                cursor.skip(length * struct.calcsize(SCALARS[kind]), f"the array {key!r}")
        elif kind in SCALARS:
            layout = SCALARS[kind]
            raw = cursor.take(struct.calcsize(layout), f"the value of {key!r}")
            metadata[key] = struct.unpack(layout, raw)[0]
        else:
            raise cursor.broken(f"{key!r} has unknown type {kind}")
    return metadata, arrays


def _keep_text(cursor: Cursor, key: str, metadata: dict[str, Scalar]) -> None:
    """Read a short value; step over a long one, such as a chat template."""
    length = cursor.number("<Q", f"the length of {key!r}")
    if length > KEPT_VALUE_BYTES:
        cursor.skip(length, f"the value of {key!r}")
    else:
        metadata[key] = cursor.keep(length, f"the value of {key!r}")


def _skip_strings(cursor: Cursor, key: str, count: int, most: int) -> int:
    """Step over an array of strings; returns how many it held."""
    if count > most or count * 8 > cursor.size - cursor.at:
        raise cursor.broken(f"the array {key!r} claims {count:,} strings")
    cursor.skip_texts(count, f"a string of the array {key!r}")
    return count


def _tensors(cursor: Cursor, count: int, alignment: int) -> tuple[Tensor, ...]:
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
