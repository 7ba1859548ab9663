"""The file of measurements: bounded, and of use however damaged it is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swapmoe import gguf_info, history, measured, speed
from swapmoe.gguf_info import ModelFacts
from swapmoe.history import Disk, Run
from tests.support.headers import MOE, ROWS, gguf, write


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    return gguf_info.inspect(write(tmp_path / "m.gguf", gguf(MOE, ROWS)))


def run(facts: ModelFacts, rate: float = 2.5) -> Run:
    return Run(history.model_key(facts), "direct", 2, 1 << 30, 5 * 10**8, rate, hit_rate=0.5)


def test_runs_come_back_in_order(facts: ModelFacts, tmp_path: Path) -> None:
    file = tmp_path / "cache" / "history.jsonl"
    for rate in (1.0, 2.0):
        history.record(run(facts, rate), file=file)
    history.record(replace(run(facts), model="another"), file=file)
    found = history.runs(facts, file)
    assert [entry.decode_rate for entry in found] == [1.0, 2.0]
    assert found[0].stall is None
    assert found[0].time > 0
    assert len(history.all_runs(file)) == 3


def test_a_run_from_the_counters(facts: ModelFacts) -> None:
    counters = {"hits": 300, "misses": 100, "budget": 7, "read_bytes": 4_000, "stall_us": 500_000}
    found = measured.run_of(facts, counters, io="direct", threads=4, tokens=10, decode_rate=2.0)
    assert found.model == history.model_key(facts)
    assert (found.hit_rate, found.bytes_per_token, found.stall) == (0.75, 400, 0.05)
    assert (found.budget, found.active_bytes) == (7, speed.active_bytes(facts))
    mapped = measured.run_of(
        facts, {"read_bytes": 10}, io="mmap", threads=4, tokens=10, decode_rate=2.0, budget=9
    )
    assert (mapped.hit_rate, mapped.stall, mapped.budget) == (None, None, 9)


def test_disks_are_told_apart(facts: ModelFacts, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    history.record(Disk(history.device_key(facts.path), 1 << 20, 8, 2e9), file=file)
    history.record(Disk("elsewhere", 1 << 20, 8, 1e9), file=file)
    assert [disk.rate for disk in history.disks(facts.path, file)] == [2e9]
    assert history.disks(tmp_path / "missing", file) == []


def test_the_file_is_bounded(
    facts: ModelFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "KEPT_LINES", 5)
    file = tmp_path / "history.jsonl"
    for rate in range(1, 9):
        history.record(run(facts, float(rate)), file=file)
    assert [entry.decode_rate for entry in history.runs(facts, file)] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "walk"},
        {"decode_rate": "fast"},
        {"decode_rate": -1.0},
        {"decode_rate": float("nan")},
        {"decode_rate": float("inf")},
        {"decode_rate": True},
        {"budget": 10**400},
        {"budget": 1.5},
        {"model": None},
        {"hit_rate": [0.5]},
    ],
)
def test_lines_that_make_no_sense_are_passed_over(
    facts: ModelFacts, tmp_path: Path, change: dict[str, object]
) -> None:
    file = tmp_path / "history.jsonl"
    history.record(run(facts), file=file)
    values = json.loads(file.read_text())
    with file.open("a") as stream:
        stream.write(json.dumps({**values, **change}) + "\n[]\nnull\n{\n")
        stream.write("[" * 5000 + "\n" + json.dumps({**values, "decode_rate": 9}) + "\n")
    assert [entry.decode_rate for entry in history.all_runs(file)] == [2.5, 9]
    history.record(run(facts), file=file)
    assert len(history.all_runs(file)) == 3


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=300))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "history.jsonl"
    file.write_bytes(data)
    assert history.all_runs(file) == []


def test_no_file_and_a_folder_in_its_place(tmp_path: Path) -> None:
    assert history.all_runs(tmp_path / "none") == []
    assert history.all_runs(tmp_path) == []
