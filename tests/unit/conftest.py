"""Fixtures for tests that start programs: a workshop with a build in it, and a model."""

from pathlib import Path

import pytest

from swapmoe import filesystems, pins
from swapmoe.build import BuildOptions, ensure_built
from swapmoe.filesystems import Place
from swapmoe.receipts import Receipt
from tests.support.building import Workshop
from tests.support.headers import MOE, ROWS, gguf, write

NVME = Place("/", "ext4", "/dev/nvme0n1p2", ("rw",), "nvme0n1", "ssd")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path, monkeypatch)
    made.cpu("avx2")
    monkeypatch.setattr(pins, "load", lambda _name=None: made.pin)
    monkeypatch.chdir(made.root)
    monkeypatch.setattr(filesystems, "place_of", lambda _path: NVME)
    return made


@pytest.fixture
def built(shop: Workshop) -> Receipt:
    receipt = ensure_built(shop.pin, BuildOptions())
    shop.tools.forget_calls()
    return receipt


@pytest.fixture
def model(shop: Workshop) -> Path:
    return write(shop.root / "it's [a] model.gguf", gguf(MOE, ROWS))
