"""Sizes as people write them: one rule for files, environment and command line; bytes inside."""

import re
from decimal import Decimal

MIB = 1 << 20
GIB = 1 << 30
LARGEST = (2**31 - 1) * MIB
"""The engine counts MiB in a signed 32-bit number."""

UNITS = {"m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "mb": 10**6, "gb": 10**9}
EXAMPLES = "512 (MiB), 800M, 1.5G, 1.5GiB, 2GB"

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?([A-Za-z]*)", re.ASCII)


def parse(value: object) -> int:
    """Bytes of a size: a whole number counts MiB, text may carry a unit in upper or lower case.

    M and G (MiB and GiB) are powers of 1024, MB and GB powers of 1000; with a unit, decimals are
    allowed. Raises `ValueError` with a reason for anything else, and for less than 1 MiB but 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"a size is a whole number of MiB or text with a unit: {EXAMPLES}")
    text = str(value).strip()
    if text.startswith("-"):
        raise ValueError("a size cannot be negative")
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"not a size; write for example {EXAMPLES}")
    number, unit = match[1], match[2].lower()
    if unit and unit not in UNITS:
        raise ValueError(f"unknown unit {match[2]}; known are M, G, MiB, GiB, MB and GB")
    if not unit and "." in number:
        raise ValueError("a number without unit counts whole MiB; add a unit, as in 1.5G")
    exact = Decimal(number) * UNITS.get(unit, MIB)
    if 0 < exact < MIB:
        raise ValueError("less than 1 MiB, which is the engine's unit")
    if exact > LARGEST:
        raise ValueError(f"too large; at most {LARGEST // MIB:,} MiB")
    return int(exact)


def whole_mib(size: int) -> int:
    """The MiB that fit into a size in bytes: what the engine is told."""
    return size // MIB


def floor_mib(size: int) -> int:
    """The fewest whole MiB that hold a size in bytes."""
    return -(-size // MIB)
