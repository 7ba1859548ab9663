"""`swapmoe plan --calibrate` with the real llama-bench."""

import json
from pathlib import Path

import pytest

from swapmoe import history
from swapmoe.cli import main
from swapmoe.gguf_info import inspect
from tests.support.models import make_tiny

pytestmark = pytest.mark.usefixtures("installed")


def test_a_plan_from_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_tiny(tmp_path, experts=64, layers=8, embd=256, head_dim=64, ffn=256)
    assert main(["plan", str(model), "--calibrate", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["speed"]["decode"]["source"] == "measured"
    assert "measured: compute " in err
    facts = inspect(model)
    (run,) = history.runs(facts)
    assert run.stall is not None
    assert 0 <= run.stall < 1 / run.decode_rate
    points = history.hits(facts)
    assert points
    assert all(0 <= point.hit_rate <= 1 and 0 < point.share <= 1 for point in points)
