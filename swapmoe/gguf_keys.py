"""Writes a metadata key of a GGUF file with the type that its Python value has."""

from gguf import GGUFWriter

from swapmoe.model_rows import Value


def add_key(writer: GGUFWriter, key: str, value: Value) -> None:
    """Add `key`: bool, int (u32), float (f32), str, or an array of int."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
