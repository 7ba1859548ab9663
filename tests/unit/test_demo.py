"""`swapmoe demo` with fake tools: the chain, what it shows, and when it must not claim success."""

import json
from pathlib import Path

import pytest

from swapmoe import demo, pins
from swapmoe.cli import main
from tests.support.building import Workshop
from tests.support.models import tiny_spec

SAYS = f"""\
logo

> {demo.PROMPT}
bewa [bofeU]

[ Prompt: 12.5 t/s | Generation: 3.4 t/s ]

Exiting...
"""
LOG = """\
I expert_stream: tracking {slices} routed expert slices
I expert_stream: statistics: passes=4 routed=5 hinted=6 hint_bytes=7 hint_errors=0 read_bytes=8192
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path, monkeypatch)
    made.cpu("avx2")
    spec = tiny_spec()
    monkeypatch.setattr(demo, "MODEL", spec)
    monkeypatch.setattr(pins, "load", lambda _name=None: made.pin)
    made.tools.set(says=SAYS, complains=LOG.format(slices=spec.slices))
    return made


def test_shows_what_was_measured(shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--io", "fault"]) == 0
    out = capsys.readouterr().out
    assert "'bewa [bofeU]'" in out
    assert "tokens/s       3.4 (prompt 12.5)" in out
    assert "slices tracked 24" in out
    assert "bytes read     8,192" in out
    assert "version: 10235 (221f0f635)" in out
    call = " ".join(shop.tools.calls("llama-cli")[-1])
    assert "--expert-io fault" in call
    assert "--verbosity 4" in call


def test_json(shop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["text"] == "bewa [bofeU]"
    assert data["statistics"]["read_bytes"] == 8192


@pytest.mark.parametrize(
    "knobs",
    [
        {"exit": 1},
        {"exit": "SIGKILL"},
        {"complains": ""},
        {"says": "nothing"},
        {"complains": LOG.format(slices=23)},
    ],
)
def test_no_success_without_proof(shop: Workshop, knobs: dict[str, object]) -> None:
    shop.tools.set(**knobs)
    assert main(["demo"]) == 10


def test_bad_options_fail_before_the_build(shop: Workshop) -> None:
    assert main(["demo", "--threads", "0"]) == 2
    assert shop.tools.calls("cmake") == []
