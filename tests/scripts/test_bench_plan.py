"""scripts/bench_plan.py: what it refuses; the measuring itself is tested without its script."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_plan.py"


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--help"], 0, ""),
        (["--model", "none"], 2, "none"),
        (["--threads", "0"], 2, "--threads"),
        (["--patched", "."], 10, "there is no llama-bench"),
    ],
)
def test_bad_input(tmp_path: Path, argv: list[str], code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, *argv], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
