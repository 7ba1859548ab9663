"""Plans against runs: what they are made from, what counts as off, where it goes on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swapmoe import bench_setup, blockdev, models, plan_bench, plan_driver, weights
from swapmoe.comparison import as_text
from swapmoe.errors import LaunchError
from swapmoe.gguf_info import ModelFacts, inspect
from swapmoe.plan_bench import PRESETS, RATIOS, Result, State
from swapmoe.stream_bench import Bench, Engine, Sample, Task
from swapmoe.usage import Usage
from tests.support.models import make_tiny

ROW = Result(
    preset=PRESETS[0],
    ratio=2.0,
    file_bytes=5 * 10**9,
    limit=25 * 10**8,
    planned_engine="direct",
    engine="direct",
    low=8.0,
    expected=10.0,
    high=12.5,
    rate=9.0,
    planned_misses=0.3,
    misses=0.31,
    planned_peak=2 * 10**9,
    peak=21 * 10**8,
    outcome="ok",
)


class Machine:
    """A disk of 1 GB/s and 20 ms of computing for each token; half of the bytes are found.

    With a cache of a given size it is a quarter.
    """

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = make_tiny(tmp_path, experts=64, layers=8)
        self.asked: list[tuple[Engine, Task, int | None]] = []
        self.outcome = "ok"
        monkeypatch.setattr(bench_setup, "model", lambda _preset: self.model)
        monkeypatch.setattr(blockdev, "forget", lambda _paths: None)
        monkeypatch.setattr(Bench, "sample", self._run)
        monkeypatch.setattr(plan_driver, "limit_of", lambda _facts, ratio: int(2**30 / ratio))

    @property
    def facts(self) -> ModelFacts:
        return inspect(self.model)

    def _run(self, engine: Engine, task: Task, limit: int | None) -> Sample:
        self.asked.append((engine, task, limit))
        missed = 0.75 if engine.cache_mib else 0.5
        read = int(weights.demand(self.facts) * task.tokens * missed)
        seconds = task.tokens * 0.02 + read / 1e9
        part = Usage(seconds, 0, 0, read * (task.repeats - task.cold))
        good = self.outcome == "ok"
        return Sample(
            *(engine.name, task.name, self.outcome, task.counted),
            rate=task.tokens / seconds if good else None,
            part=part,
            whole=part,
            peak=2**28,
            readers=6,
            statistics={"budget": 2**20, "stall_us": int(read * task.repeats / 1e3)},
            steps=((seconds, read),) * task.repeats if good else (),
            tail=() if good else ("why",),
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_one_calibration_for_three_limits(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = State(tmp_path / "state.json", "build")
    plan_driver.measure(state, PRESETS[:1], Path("llama-bench"), 2)
    assert [engine.io for engine, _, _ in machine.asked] == ["direct"] * 2 + ["auto"] * 3
    limits = [limit for _, _, limit in machine.asked]
    assert limits == [int(2**30 / ratio) for ratio in (RATIOS[0], RATIOS[0], *RATIOS)]
    assert len(state.results) == 3
    assert all(task.repeats - task.cold == 3 for _, task, _ in machine.asked[2:])
    err = capsys.readouterr().err
    assert "calibration: compute 20 ms a token" in err
    assert "[3/3] 35b-a3b-q4_k_m, 3.5: plan" in err


def test_it_goes_on_where_it_stopped(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    machine.outcome = "failed (3)"
    with pytest.raises(LaunchError, match="nothing could be measured"):
        plan_driver.measure(State(file, "build"), PRESETS[:1], Path("llama-bench"), 2)
    machine.outcome = "ok"
    plan_driver.measure(State(file, "build"), PRESETS[:1], Path("llama-bench"), 2)
    before = len(machine.asked)
    again = State(file, "build")
    plan_driver.measure(again, PRESETS[:1], Path("llama-bench"), 2)
    assert len(machine.asked) == before
    plan_driver.measure(again, PRESETS[:2], Path("llama-bench"), 2)
    assert len(machine.asked) == before + 5
    again.forget(PRESETS[0])
    assert [result.preset for result in State(file, "build").results] == [PRESETS[1]] * 3
    assert State(file, "another build").results == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"build": "build", "results": {"a": {}}}'])
def test_a_damaged_file_is_begun_anew(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(text)
    state = State(file, "build")
    assert state.results == []
    state.add(ROW)
    assert json.loads(file.read_text())["build"] == "build"
    assert State(file, "build").results == [ROW]


@pytest.mark.parametrize(
    ("change", "off"),
    [
        ({}, []),
        ({"rate": 7.0}, ["decode +43%"]),
        ({"rate": 16.0}, ["decode -38%"]),
        ({"peak": 10**9}, ["peak +100%"]),
        ({"peak": 0}, ["peak +100%"]),
        ({"rate": None, "outcome": "killed (OOM)"}, ["the run killed (OOM)"]),
        ({"engine": "mmap"}, ["engine mmap, not direct"]),
    ],
)
def test_what_is_off(change: dict[str, object], off: list[str]) -> None:
    row = replace(ROW, **change)  # type: ignore[arg-type]
    assert row.is_off == off
    lines = plan_bench.verdict([ROW, row])
    assert lines[0].startswith("1 of 2 rows" if off else "2 of 2 rows")
    assert len(lines) == (2 if off else 1)


def test_the_table_fits() -> None:
    rows = plan_bench.table([replace(ROW, preset=preset) for preset in PRESETS])
    assert max(map(len, as_text(rows))) <= 80
    assert "10.0 (8.0-12.5)" in rows[1]


def test_six_models_that_differ() -> None:
    specs = [models.PRESETS[preset] for preset in PRESETS]
    assert len(specs) == 6
    assert len({(s.arch, s.experts, s.slice_bytes, s.type) for s in specs}) == 6
