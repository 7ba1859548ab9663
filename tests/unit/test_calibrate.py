"""What one run shows: hit rates of all smaller caches, computing, and a plan that uses them."""

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from swapmoe import calibrate, gguf_info, history, plan_text, speed, weights
from swapmoe import plan as planning
from swapmoe.calibrate import SMALL, SMALL_SHARE, STEP
from swapmoe.cli import main
from swapmoe.errors import LaunchError
from swapmoe.gguf_info import ModelFacts
from swapmoe.memory import Memory
from swapmoe.sizes import GIB, MIB
from swapmoe.speed import Machine
from swapmoe.stream_bench import Bench, Engine, Sample, Task
from swapmoe.usage import Usage
from tests.support.headers import head, write
from tests.support.published import PUBLISHED

NOTHING = Usage(0, 0, 0, 0)
DISK = 1e9
COMPUTE = 0.05


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    model = PUBLISHED["Qwen3.5-122B-A10B Q2_K"]
    data, _ = head(model.pairs(), model.rows())
    return gguf_info.inspect(write(tmp_path / "m.gguf", data), header_only=True)


LAYERS, EXPERTS, USED = 10, 64, 8


def routing(tokens: int, seed: int = 1) -> list[list[int]]:
    """Experts of each token in all layers: a few are chosen far more often than the rest."""
    chance = np.random.default_rng(seed)
    weight = np.log(1.0 / (1.0 + np.arange(EXPERTS)))
    noise = chance.gumbel(size=(tokens, LAYERS, EXPERTS))
    chosen = np.argpartition(weight + noise, -USED)[:, :, -USED:]
    numbers = chosen + EXPERTS * np.arange(LAYERS)[None, :, None]
    return [[int(number) for number in token.ravel()] for token in numbers]


def misses(chosen: list[list[int]], room: int) -> list[float]:
    """Share of each token's experts that a cache of `room` experts lacks, oldest go first."""
    kept: OrderedDict[int, None] = OrderedDict()
    found = []
    for ids in chosen:
        missed = 0
        for expert in ids:
            missed += expert not in kept
            kept[expert] = None
            kept.move_to_end(expert)
            if len(kept) > room:
                kept.popitem(last=False)
        found.append(missed / len(ids))
    return found


def sample(facts: ModelFacts, share: float, tokens: int = 160) -> Sample:
    """A run of a model with room for a share of its experts."""
    demand = weights.demand(facts)
    lacked = misses(routing(tokens), int(LAYERS * EXPERTS * share))
    steps = []
    for first in range(0, tokens, STEP):
        read = sum(lacked[first : first + STEP]) * demand
        steps.append((STEP * COMPUTE + read / DISK, int(read)))
    routed = EXPERTS // USED * demand
    return Sample(
        *("direct", "decode", "ok", tokens, 1.0, NOTHING, NOTHING, None),
        statistics={"budget": int(routed * share)},
        steps=tuple(steps),
    )


def small(facts: ModelFacts, share: float) -> Sample:
    """The second run."""
    return sample(facts, share * SMALL_SHARE, STEP * SMALL.repeats)


@pytest.fixture
def eighths(facts: ModelFacts, monkeypatch: pytest.MonkeyPatch) -> ModelFacts:
    """The same model, its experts as many times a token's demand as in `sample`."""
    split = weights.split(facts)
    changed = replace(split, routed=EXPERTS // USED * weights.demand(facts))
    monkeypatch.setattr(weights, "split", lambda _facts: changed)
    return facts


def test_one_run_shows_the_hit_rates_of_smaller_caches(eighths: ModelFacts) -> None:
    found = calibrate.hits_of(eighths, sample(eighths, 0.8), small(eighths, 0.8))
    assert [each.share for each in found] == sorted(each.share for each in found)
    machine = Machine(cores=2, hits=found)
    for share in (0.2, 0.25, 0.4, 0.6):
        room = int(LAYERS * EXPERTS * share)
        real = sum(misses(routing(600, seed=2), room)[200:]) / 400
        budget = int(share * (EXPERTS // USED) * weights.demand(eighths))
        found_here = speed.estimate(eighths, machine, budget=budget, engine="direct", ubatch=512)
        curve = found_here.misses
        assert (curve.low + curve.high) / 2 == pytest.approx(real, abs=0.06)


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_computing_and_waiting_are_told_apart(eighths: ModelFacts, share: float) -> None:
    """The first tokens, which wait for other weights and for new memory too, do not count."""
    whole = sample(eighths, share)
    slow = tuple((3 * spent, read) for spent, read in whole.steps[:4])
    filling = replace(whole, steps=(*slow, *whole.steps[4:]))
    run = calibrate.run_of(eighths, filling, small(eighths, share), threads=2)
    assert run.stall is not None
    assert run.bytes_per_token is not None
    assert 1 / run.decode_rate - run.stall == pytest.approx(COMPUTE, rel=0.01)
    assert run.bytes_per_token / run.stall == pytest.approx(DISK, rel=0.01)


def test_computing_is_never_nothing(eighths: ModelFacts) -> None:
    steps = ((9.0, 1), (0.1, 10**9), (0.1, 10**9))
    much = ((9.0, 1), (9.0, 1), (0.4, 2 * 10**9), (0.4, 2 * 10**9))
    run = calibrate.run_of(
        eighths,
        replace(sample(eighths, 0.2), steps=steps),
        replace(small(eighths, 0.2), steps=much),
        threads=2,
    )
    assert run.stall is not None
    assert 0 < run.stall < 1 / run.decode_rate


def test_some_disturbed_steps_do_not_count(eighths: ModelFacts) -> None:
    few, many = sample(eighths, 0.8).steps[5:], small(eighths, 0.8).steps[2:]
    slow = tuple((s * (3 if i == 3 else 1), r) for i, (s, r) in enumerate(few))
    assert calibrate.seconds_per_byte(slow, many) == pytest.approx(1 / DISK, rel=0.1)


@pytest.mark.parametrize("many", [(), ((1.0, 5),), ((1.0, 9),), ((9.0, 2),)])
def test_nothing_to_tell_waiting_from(many: tuple[tuple[float, int], ...]) -> None:
    assert calibrate.seconds_per_byte([(2.0, 5)], many) == 0.0


class TestRun:
    @pytest.fixture(autouse=True)
    def fakes(self, facts: ModelFacts, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Engine, Task, int | None]] = []
        self.found = sample(facts, 0.5)

        def run(_bench: Bench, engine: Engine, task: Task, limit: int | None) -> Sample:
            self.asked.append((engine, task, limit))
            return replace(self.found, steps=self.found.steps[: task.repeats])

        monkeypatch.setattr(Bench, "sample", run)
        self.bench = Bench(Path("llama-bench"), facts.path, 2)

    def test_what_is_kept_and_used(self, facts: ModelFacts, tmp_path: Path) -> None:
        file = tmp_path / "history.jsonl"
        calibrate.calibrate(facts, self.bench, 5 * GIB, 2.0).record(file)
        (engine, task, limit), (second, _, same_limit) = self.asked
        assert (engine.io, task.repeats * task.tokens, limit) == ("direct", 80, 5 * GIB)
        assert (second.io, same_limit) == ("direct", 5 * GIB)
        budget = self.found.statistics["budget"]
        assert second.cache_mib == int(budget * SMALL_SHARE) // MIB
        assert len(history.hits(facts, file)) >= 2
        machine = planning.known_machine(replace(facts, missing_bytes=0), planning.Options(), file)
        here = Memory(14 * GIB, 16 * GIB, "")
        made = planning.make(facts, here=here, machine=machine)
        assert made.speed
        assert made.speed.decode.source == "measured"
        text = "\n".join(plan_text.lines(made))
        assert "measured: hit rates of this model" in text
        assert "measured: bytes read by the time waited" in text
        assert plan_text.CALIBRATE not in text

    def test_a_newer_one_takes_its_place(self, facts: ModelFacts, tmp_path: Path) -> None:
        file = tmp_path / "history.jsonl"
        for _ in range(2):
            calibrate.calibrate(facts, self.bench, None).record(file)
        points = history.hits(facts, file)
        assert len({point.share for point in points}) == len(points)

    def test_a_run_that_shows_nothing(self, facts: ModelFacts) -> None:
        self.found = replace(self.found, outcome="failed (3)", steps=(), tail=("no room",))
        with pytest.raises(LaunchError, match=r"llama-bench failed \(3\)") as caught:
            calibrate.calibrate(facts, self.bench, None)
        assert list(caught.value.evidence) == ["no room"]


@pytest.mark.parametrize(("expected", "tokens"), [(None, 64), (0.1, 64), (2.0, 80), (50.0, 192)])
def test_slow_models_decode_fewer_tokens(expected: float | None, tokens: int) -> None:
    task = calibrate.task(expected)
    assert task.tokens * task.repeats == tokens


def test_not_for_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tmp_path / "m.gguf"), "--ram", "8G", "--calibrate"]) == 2
    assert "another one" in capsys.readouterr().err
