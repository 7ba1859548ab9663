"""2,000 damaged headers through inspect and plan: an answer or a reason, soon, in little memory."""

import json
import random
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from swapmoe import gguf_info, inspection, plan_text
from swapmoe import plan as planning
from swapmoe.errors import ModelError
from swapmoe.memory import Memory
from swapmoe.sizes import GIB
from swapmoe.speed import Machine
from tests.support.headers import ARRAY, MOE, ROWS, STRING, U32, gguf, head, text, write
from tests.support.published import PUBLISHED

COUNT = 2_000
SECONDS = 2.0
BYTES = 200 << 20
NUMBERS = [0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]

Mutation = Callable[[random.Random, bytearray], None]


def flip(chance: random.Random, data: bytearray) -> None:
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] = chance.randrange(256)


def number(chance: random.Random, data: bytearray) -> None:
    """A length, count, type or offset becomes one that hurts."""
    width = chance.choice("IQ")
    size = struct.calcsize(width)
    at = chance.randrange(len(data) - size)
    struct.pack_into(f"<{width}", data, at, chance.choice(NUMBERS) % 2 ** (8 * size))


def cut(chance: random.Random, data: bytearray) -> None:
    del data[chance.randrange(len(data)) :]


def repeat(chance: random.Random, data: bytearray) -> None:
    at = chance.randrange(len(data))
    piece = data[at : at + chance.randint(1, 200)]
    where = chance.randrange(len(data))
    data[where:where] = piece


MUTATIONS: list[Mutation] = [flip, number, cut, repeat]


def bases() -> list[bytes]:
    """Headers to damage: a whole small file, and heads of large models."""
    keys: dict[str, object] = {
        **MOE,
        "qwen2moe.attention.head_count_kv": [2, 2],
        "tokenizer.ggml.tokens": (
            ARRAY,
            struct.pack("<IQ", STRING, 40) + b"".join(text(f"token {n}") for n in range(40)),
        ),
        "tokenizer.ggml.types": (ARRAY, struct.pack("<IQ40I", U32, 40, *range(40))),
    }
    return [gguf(keys, ROWS), *(head(m.pairs(), m.rows())[0] for m in PUBLISHED.values())]


def look(path: Path) -> None:
    """All that inspect and plan do with a file."""
    facts = gguf_info.inspect(path, header_only=True)
    found = inspection.inspect(facts)
    assert list(inspection.lines(found))
    json.dumps(inspection.to_json(found))
    here = Memory(14 * GIB, 16 * GIB, "")
    made = planning.make(facts, here=here, machine=Machine(cores=4))
    assert list(plan_text.lines(made))
    json.dumps(plan_text.to_json(made))


def peak() -> int:
    """Most memory of this process so far, in bytes; 0 where that is not known."""
    if sys.platform != "linux":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_2000_damaged_headers(tmp_path: Path) -> None:
    chance = random.Random(1)
    whole = bases()
    for data in whole:
        look(write(tmp_path / "whole.gguf", data))
    before, slowest, refused = peak(), 0.0, 0
    for _ in range(COUNT):
        data = bytearray(chance.choice(whole))
        for mutation in chance.choices(MUTATIONS, k=chance.randint(1, 3)):
            if len(data) > 16:
                mutation(chance, data)
        path = write(tmp_path / "damaged.gguf", bytes(data))
        started = time.process_time()
        try:
            look(path)
        except ModelError:
            refused += 1
        slowest = max(slowest, time.process_time() - started)
    assert COUNT / 4 < refused < COUNT
    assert slowest < SECONDS
    assert peak() - before < BYTES


@pytest.mark.parametrize("kind", ["strings", "tensors", "keys", "long texts"])
def test_large_headers_that_are_what_they_say(tmp_path: Path, kind: str) -> None:
    """As much as fits into 24 MB of header: slow or greedy readers show here."""
    if kind == "strings":
        count = 2_000_000
        array = struct.pack("<IQ", STRING, count) + text("") * count
        data = gguf({**MOE, "tokens": (ARRAY, array)}, ROWS)
    elif kind == "tensors":
        row = b"".join(text(f"t{n}") + struct.pack("<IQIQ", 1, 0, 0, 0) for n in range(65_536))
        data = b"GGUF" + struct.pack("<IQQ", 3, 65_536, 0) + row + bytes(64)
    elif kind == "keys":
        pairs = b"".join(text(f"k{n}") + struct.pack("<II", U32, n) for n in range(65_536))
        data = b"GGUF" + struct.pack("<IQQ", 3, 0, 65_536) + pairs
    else:
        pairs = b"".join(
            text(f"k{n}") + struct.pack("<I", STRING) + text("x" * 4_096) for n in range(6_000)
        )
        data = b"GGUF" + struct.pack("<IQQ", 3, 0, 6_000) + pairs
    path = write(tmp_path / "large.gguf", data)
    before, started = peak(), time.process_time()
    with suppress(ModelError):
        look(path)
    assert time.process_time() - started < 3 * SECONDS
    assert peak() - before < BYTES
