"""Real builds: the patched one, and an unpatched one to compare with.

SWAPMOE_PATCHED_BIN and SWAPMOE_BASE_BIN name folders of ready programs, to skip building.
"""

import os
from pathlib import Path

import pytest

from tests.support.llama import Llama


@pytest.fixture(scope="session")
def base() -> Llama:
    """The unpatched programs."""
    return Llama(Path(os.environ["SWAPMOE_BASE_BIN"]))


@pytest.fixture(scope="session")
def patched() -> Llama:
    """The patched programs."""
    return Llama(Path(os.environ["SWAPMOE_PATCHED_BIN"]))
