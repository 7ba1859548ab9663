"""What a running server shows of its speed: asked for once, at rest, without the cold part."""

from pathlib import Path

import pytest

from swapmoe import gguf_info, health, history, recorder
from swapmoe.gguf_info import ModelFacts
from swapmoe.health import Endpoint
from swapmoe.history import Run
from swapmoe.readiness import Vitals
from swapmoe.recorder import Recorder
from tests.support.headers import MOE, ROWS, gguf, write

LOG = "expert_stream: io = direct (auto: experts 9 MiB, available 3 MiB)"


class Clock:
    """A server whose counters the test sets, in time the test passes."""

    def __init__(self, facts: ModelFacts, monkeypatch: pytest.MonkeyPatch) -> None:
        self.facts = facts
        self.now, self.cpu, self.asked = 1000.0, 0.0, 0
        self.alive = True
        self.found: dict[str, float] | None = {"expert_misses_total": 0.0}
        monkeypatch.setattr(recorder.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(recorder, "vitals", self._vitals)
        monkeypatch.setattr(health, "metrics", self._metrics)

    def _vitals(self, _pid: int) -> Vitals | None:
        return Vitals(0, 0, self.cpu) if self.alive else None

    def _metrics(self, _where: Endpoint) -> dict[str, float] | None:
        self.asked += 1
        return self.found

    def recorder(self, log: str = LOG) -> Recorder:
        return Recorder(self.facts, Endpoint("h", 1), lambda: log, threads=2, budget=7)

    def work(self, mine: Recorder, **counters: float) -> bool:
        """It computes, and has these counters when it rests."""
        self.cpu += 5
        self.now += 10
        assert not mine(1)
        if self.found is not None:
            self.found = {**self.found, **counters}
        self.now += 10
        return mine(1)

    def runs(self) -> list[Run]:
        return history.runs(self.facts)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("SWAPMOE_CACHE_DIR", str(tmp_path / "cache"))
    return Clock(gguf_info.inspect(write(tmp_path / "m.gguf", gguf(MOE, ROWS))), monkeypatch)


def decoded(tokens: int, rate: float, **others: float) -> dict[str, float]:
    return {"tokens_predicted_total": tokens, "predicted_tokens_seconds": rate, **others}


def test_the_warm_part_is_recorded_once(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """40 cold tokens in 40 s, then 60 in 20 s: 3 a second."""
    mine = clock.recorder()
    cold = {"expert_hits_total": 10, "expert_misses_total": 90, "expert_read_bytes_total": 900}
    assert not clock.work(mine, **decoded(40, 1.0, prompt_tokens_total=500, **cold))
    assert clock.runs() == []
    warm = {"expert_hits_total": 100, "expert_misses_total": 120, "expert_read_bytes_total": 1500}
    warm |= {"expert_budget_bytes": 4096, "expert_stall_seconds_total": 6}
    assert clock.work(mine, **decoded(100, 100 / 60, prompt_tokens_total=510, **warm))
    (run,) = clock.runs()
    assert run.decode_rate == pytest.approx(3.0)
    assert (run.hit_rate, run.bytes_per_token, run.stall) == (0.75, 10, pytest.approx(0.1))
    assert (run.io, run.budget, run.threads, run.served) == ("direct", 4096, 2, 1)
    assert "measured for the next plan: 3.00 tokens/s in direct" in capsys.readouterr().err


def test_a_server_that_computes_or_sleeps_is_left_alone(clock: Clock) -> None:
    mine = clock.recorder()
    for _ in range(20):
        clock.now += 1
        clock.cpu += 1
        assert not mine(1)
    assert clock.asked == 0
    for _ in range(20):
        clock.now += 10
        assert not mine(1)
    assert clock.asked == 1


def test_long_prompts_and_busy_servers_do_not_count(clock: Clock) -> None:
    mine = clock.recorder()
    clock.work(mine, **decoded(40, 1.0))
    assert not clock.work(mine, **decoded(100, 1.0, prompt_tokens_total=400))
    assert not clock.work(mine, **decoded(140, 1.0, requests_processing=1))
    assert not clock.work(mine, **decoded(110, 1.0, requests_processing=0))
    assert clock.work(mine, **decoded(150, 1.0))
    (run,) = clock.runs()
    assert run.decode_rate == pytest.approx(1.0)


@pytest.mark.parametrize("found", [None, {}, {"tokens_predicted_total": 9.0}])
def test_a_server_that_does_not_tell_is_not_asked_again(
    clock: Clock, found: dict[str, float] | None
) -> None:
    clock.found = found
    assert clock.work(clock.recorder())
    assert clock.runs() == []


def test_the_server_is_gone(clock: Clock) -> None:
    mine = clock.recorder()
    clock.alive = False
    clock.now += 10
    assert mine(1)


def test_an_engine_that_is_not_known(clock: Clock) -> None:
    mine = clock.recorder(log="")
    clock.work(mine, **decoded(40, 1.0))
    assert clock.work(mine, **decoded(100, 1.0))
    assert clock.runs() == []
