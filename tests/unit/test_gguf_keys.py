"""Metadata keys take the type of their Python value."""

from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

from swapmoe.gguf_keys import add_key


def test_each_type_comes_back(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "x")
    values = {"a": True, "b": 7, "c": 0.5, "d": "text", "e": [1, 2]}
    for name, value in values.items():
        add_key(writer, name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    fields = GGUFReader(tmp_path / "m.gguf").fields
    kinds = {name: fields[name].types[0] for name in values}
    assert kinds == {
        "a": GGUFValueType.BOOL,
        "b": GGUFValueType.UINT32,
        "c": GGUFValueType.FLOAT32,
        "d": GGUFValueType.STRING,
        "e": GGUFValueType.ARRAY,
    }
    assert {name: fields[name].contents() for name in values} == values
