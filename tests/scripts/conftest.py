"""What measuring needs of the system."""

import pytest

from swapmoe import blockdev
from swapmoe.cgroup import memory_limit
from swapmoe.errors import ToolError


@pytest.fixture(scope="session")
def can_measure(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Root, a memory cgroup and a block device; else there is nothing to measure with."""
    try:
        device = blockdev.device_of(tmp_path_factory.getbasetemp())
        before = int(device.read_ahead.read_text())
        with memory_limit(1 << 30), blockdev.read_ahead(device, before):
            pass
    except (ToolError, OSError) as error:
        pytest.skip(f"needs root and a cgroup: {error}")
