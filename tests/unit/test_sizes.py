"""Sizes: one rule for files, environment and command line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapmoe import config, sizes
from swapmoe.cli import main
from swapmoe.errors import ConfigError

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("0G", 0),
        ("512", 512 * MIB),
        ("1M", MIB),
        ("1MiB", MIB),
        ("800m", 800 * MIB),
        ("2G", 2 * GIB),
        ("2GiB", 2 * GIB),
        ("2 gib", 2 * GIB),
        ("1.5G", 3 * GIB // 2),
        ("0.5G", GIB // 2),
        ("2GB", 2 * 10**9),
        ("1.25gb", 1_250_000_000),
        ("3MB", 3_000_000),
        (" 512 ", 512 * MIB),
    ],
)
def test_what_is_understood(text: str, size: int) -> None:
    assert sizes.parse(text) == size


BAD = {
    "": "not a size",
    " ": "not a size",
    "-1": "negative",
    "-1G": "negative",
    "+1G": "not a size",
    "1e3": "not a size",
    "1e9G": "not a size",
    "0x10": "not a size",
    "1_000": "not a size",
    "1,5G": "not a size",
    ".5G": "not a size",
    "1.G": "not a size",
    "1  G": "not a size",
    "inf": "not a size",
    "٤": "not a size",
    "1K": "unknown unit",
    "1T": "unknown unit",
    "1Gb/s": "not a size",
    "1B": "unknown unit",
    "1.5": "add a unit",
    "0.5M": "less than 1 MiB",
    "1MB": "less than 1 MiB",
    "0.00000000001G": "less than 1 MiB",
    "99999999999999G": "too large",
    "9" * 5000: "not a size",
}


@pytest.mark.parametrize("text", BAD)
def test_what_is_not(text: str) -> None:
    with pytest.raises(ValueError, match=BAD[text]):
        sizes.parse(text)


@pytest.mark.parametrize("value", [True, False, 1.5, None, [1], {"a": 1}])
def test_other_types_are_not_sizes(value: object) -> None:
    with pytest.raises(ValueError, match="whole number of MiB"):
        sizes.parse(value)


@given(st.text(max_size=12) | st.integers() | st.floats() | st.booleans())
def test_anything_is_a_size_or_refused(value: object) -> None:
    try:
        size = sizes.parse(value)
    except ValueError:
        return
    assert size == 0 or MIB <= size <= sizes.LARGEST


def test_whole_mib() -> None:
    assert sizes.whole_mib(2 * 10**9) == 1907
    assert sizes.floor_mib(2 * 10**9) == 1908
    assert sizes.floor_mib(MIB) == 1


def from_file(folder: Path, text: str) -> int:
    path = folder / "c.toml"
    path.write_text(f"[run]\ncache-size = {text}\n")
    return config.load(config_file=path, env={}).settings.run.cache_size


def from_env(text: str) -> int:
    return config.load(env={"SWAPMOE_RUN_CACHE_SIZE": text}).settings.run.cache_size


def from_flags(text: str) -> int:
    return config.load({"run.cache_size": text}, env={}).settings.run.cache_size


@pytest.mark.parametrize("text", ["512", "1.5G", "2GB", "0"])
def test_every_source_gives_the_same(tmp_path: Path, text: str) -> None:
    size = sizes.parse(text)
    assert from_file(tmp_path, f"'{text}'") == from_env(text) == from_flags(text) == size


def test_a_number_in_a_file_counts_mib(tmp_path: Path) -> None:
    assert from_file(tmp_path, "512") == 512 * MIB


@pytest.mark.parametrize("text", ["-1", "1.5", "1e3", "''", "'1K'", "true", "'0.5M'"])
def test_a_bad_size_in_a_file_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_file(tmp_path, text)
    (problem,) = caught.value.evidence
    assert problem.startswith(f"{tmp_path / 'c.toml'}:2: run.cache_size = ")


@pytest.mark.parametrize("text", ["-1", "1.5", "1e3", "", "1K", "0.5M"])
def test_a_bad_size_elsewhere(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="one problem") as caught:
        from_env(text)
    assert "SWAPMOE_RUN_CACHE_SIZE" in caught.value.evidence[0]
    assert main(["run", "-m", "x.gguf", "-p", "hi", f"--cache-size={text}"]) == 2
    assert "--cache-size" in capsys.readouterr().err
