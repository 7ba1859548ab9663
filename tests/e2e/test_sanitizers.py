"""The engine under ThreadSanitizer and AddressSanitizer: unit tests and two models at once.

The second model streams in direct mode from as few slots as there can be, over 256 tokens.
"""

from pathlib import Path
from typing import Literal

import pytest

from swapmoe import build
from swapmoe.run import capture, clean_env
from tests.support.chosen_pin import chosen_pin
from tests.support.models import make_tiny

DIRECT_TEST = "test-expert-direct"
UNIT_TEST = "test-expert-stream"
RUN_SECONDS = 900


@pytest.mark.full
@pytest.mark.parametrize("kind", ["thread", "address"])
def test_clean(kind: Literal["thread", "address"], tmp_path: Path) -> None:
    options = build.BuildOptions(sanitize=kind, targets=(DIRECT_TEST, UNIT_TEST), tests=True)
    receipt = build.ensure_built(chosen_pin(), options)
    models = [make_tiny(tmp_path, preset) for preset in ("tiny", "tiny-qwen3moe")]
    env = clean_env({"TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1"})
    for argv in ([DIRECT_TEST], [UNIT_TEST, *models]):
        done = capture(
            [receipt.bin_dir / argv[0], *argv[1:]], cwd=tmp_path, env=env, timeout=RUN_SECONDS
        )
        assert "all tests passed" in done.stdout
        assert "Sanitizer" not in done.stderr
