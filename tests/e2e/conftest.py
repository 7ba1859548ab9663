"""Real builds: the patched one, and an unpatched one to compare with.

Developers skip building with SWAPMOE_PATCHED_BIN and SWAPMOE_BASE_BIN, folders of ready programs.
"""

import os
from pathlib import Path

import pytest

from swapmoe import build, paths, receipts
from swapmoe.baseline import build_unpatched
from swapmoe.receipts import Receipt
from tests.support.archs import Saved, save_upstream_models
from tests.support.chosen_pin import chosen_pin
from tests.support.llama import Llama

BUILD_SECONDS = 5400
UPSTREAM_TEST = "test-llama-archs"
"""Upstream's program that writes a small model of each architecture."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs builds; the first test to ask for one may wait for the compiler."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.build)
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))


@pytest.fixture(scope="session")
def receipt(tmp_path_factory: pytest.TempPathFactory) -> Receipt:
    """The patched build."""
    pin = chosen_pin()
    ready = os.environ.get("SWAPMOE_PATCHED_BIN")
    if not ready:
        targets = (*build.TARGETS, UPSTREAM_TEST)
        return build.ensure_built(pin, build.BuildOptions(targets=targets, tests=True))
    return Receipt(
        key="ready",
        tag=pin.tag,
        inputs={"tree id": pin.manifest.series.tree, "sanitize": "none"},
        bin_dir=Path(ready),
        targets=build.TARGETS,
        tests=False,
        files=receipts.scan(Path(ready)),
        version_line="",
        native=True,
        cpu_flags=(),
        amx="",
        smoke="",
        seconds=0.0,
    )


@pytest.fixture(scope="session")
def patched(receipt: Receipt) -> Llama:
    """The patched programs."""
    return Llama(receipt.bin_dir)


@pytest.fixture(scope="session")
def base(request: pytest.FixtureRequest) -> Llama:
    """The unpatched programs."""
    ready = os.environ.get("SWAPMOE_BASE_BIN")
    if ready:
        return Llama(Path(ready))
    return Llama(build_unpatched(chosen_pin(), request.getfixturevalue("receipt")))


@pytest.fixture(scope="session")
def saved(patched: Llama, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The models that upstream's program writes."""
    folder = tmp_path_factory.mktemp("upstream") / "models"
    return save_upstream_models(patched.bin_dir / UPSTREAM_TEST, folder)


@pytest.fixture
def installed(receipt: Receipt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Receipt:
    """A cache folder of its own in which the patched build is the latest."""
    monkeypatch.setenv("SWAPMOE_CACHE_DIR", str(tmp_path / "cache"))
    receipts.write(paths.build_dir(receipt.key), receipt)
    return receipt
