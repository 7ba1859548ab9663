"""Plans: what adds up, what is chosen, what is said, and when it cannot work."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swapmoe import gguf_info, history, hitcurve, kv, plan_parts, plan_text, speed, weights
from swapmoe import plan as planning
from swapmoe.cli import main
from swapmoe.errors import ModelError
from swapmoe.gguf_info import ModelFacts
from swapmoe.history import Disk, Hits, Run
from swapmoe.memory import Memory
from swapmoe.plan import Options, Plan
from swapmoe.sizes import GIB, MIB
from swapmoe.speed import Machine
from tests.support.headers import MOE, ROWS, gguf, head, write
from tests.support.published import PUBLISHED

HERE = Memory(14 * GIB, 16 * GIB, "available memory of the system")
CORES = Machine(cores=8)
SMALL, LARGE = "Qwen3.5-35B-A3B Q4_K_M", "MiniMax-M2.7 IQ1_M"


def facts(tmp_path: Path, name: str = LARGE) -> ModelFacts:
    model = PUBLISHED[name]
    data, _ = head(model.pairs(), model.rows())
    return gguf_info.inspect(write(tmp_path / "m.gguf", data), header_only=True)


def make(model: ModelFacts, gib: float = 14, machine: Machine = CORES, **options: object) -> Plan:
    here = replace(HERE, usable=int(gib * GIB))
    return planning.make(model, Options(**options), here=here, machine=machine)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("gib", [6, 14, 30, 120])
def test_parts_add_up(tmp_path: Path, name: str, gib: int) -> None:
    made = make(facts(tmp_path, name), gib)
    assert sum(part.nbytes for part in made.parts) == made.usable == gib * GIB
    assert all(part.nbytes > 0 for part in made.parts)
    assert made.budget == next(p.nbytes for p in made.parts if p.name == "routed experts")
    assert made.floor == weights.demand(made.model)


def test_verdicts(tmp_path: Path) -> None:
    model = facts(tmp_path)
    assert make(model, 120).verdict == "fits"
    assert make(model, 40, replace(CORES, disk_rate=3.5e9)).verdict == "streams well"
    assert make(model, 8, replace(CORES, disk_rate=2e8)).verdict == "streams slowly"
    made = make(model, 1.2)
    assert made.verdict == "cannot work"
    assert not made.works
    assert made.speed is None
    assert (
        "MiB are needed, 1,229 MiB are usable (available memory of the system)" in made.reasons[0]
    )
    assert "the largest parts: dense weights" in made.reasons[1]
    long = make(model, 8, ctx=131072, kv_type="f16")
    assert long.reasons[2] == "with a context of 32,768 tokens it would work: --ctx 32768"


def test_below_one_tokens_demand_is_said(tmp_path: Path) -> None:
    made = make(facts(tmp_path), 3.2)
    assert made.verdict == "streams slowly"
    assert made.budget < made.floor
    assert made.speed
    assert (made.speed.misses.low, made.speed.misses.high) == (1, 1)
    assert "below one token's demand of" in made.reasons[0]


def test_the_engine_goes_by_the_ratio(tmp_path: Path) -> None:
    model = facts(tmp_path)
    small = make(model, 14)
    assert small.engine == "direct"
    assert small.cache_size == small.budget // MIB * MIB
    large = make(model, 50)
    assert large.engine == "mmap"
    assert large.budget < large.routed
    assert large.cache_size == 0


def test_the_engines_rules_are_those_of_its_source() -> None:
    """The ratio of `choose_io`, and what `open_arena` leaves."""
    found = list((Path(__file__).parents[2] / "patches").glob("*/overlay/src"))
    assert found
    for pin in found:
        choice = (pin / "llama-expert-stream.cpp").read_text(encoding="utf-8")
        assert re.findall(r"max_ratio = ([\d.]+);", choice) == [str(plan_parts.DIRECT_ABOVE)]
        assert "expert_bytes > max_ratio*room" in choice
        arena = (pin / "llama-expert-direct.cpp").read_text(encoding="utf-8")
        (mib, part) = re.findall(
            r"reserve\s+= (\d+)\*1024\*1024 \+ available/(\d+) \+ resident", arena
        )[0]
        assert int(mib) * MIB == plan_parts.LEAST_RESERVE
        assert 1 / int(part) == plan_parts.DIRECT_SHARE


def test_the_engines_choice_and_budget(tmp_path: Path) -> None:
    """The same arithmetic by hand."""
    model = facts(tmp_path)
    size = weights.split(model)
    for gib in (8, 20, 40, 50):
        made = make(model, gib, ubatch=512)
        room = gib * GIB - size.dense - size.lookup
        assert made.engine == ("direct" if size.routed > 1.25 * room else "mmap")
        if made.engine == "direct":
            program = next(p.nbytes for p in made.parts if p.name == "program and vocabulary")
            available = gib * GIB - made.kv_bytes - program
            arena = available - 256 * MIB - available // 16 - size.dense - size.lookup
            assert made.budget == pytest.approx(arena, abs=MIB)
            assert made.budget < made.peak_after(100_000) < gib * GIB
        else:
            assert made.peak_after(100_000) == gib * GIB
    assert make(model, 120).peak_after(100_000) < 120 * GIB


def test_memory_in_use_grows_with_what_is_asked_for(tmp_path: Path) -> None:
    """Up to the budget, or to where nothing new is asked for."""
    model = facts(tmp_path)
    machine = Machine(cores=8, hits=(Hits("m", 0.2, 0.9), Hits("m", 0.4, 1.0)))
    for gib in (8, 120):
        made = planning.make(model, here=Memory(gib * GIB, 200 * GIB, ""), machine=machine)
        used = [made.peak_after(tokens) for tokens in (0, 1, 20, 1000, 100_000)]
        assert used == sorted(used)
        assert 0.9 * made.floor < used[1] - used[0] <= made.floor
        held = used[-1] - used[0]
        expected = made.budget if gib == 8 else 0.4 * made.routed
        assert held == pytest.approx(expected, rel=0.05)


def test_micro_batch(tmp_path: Path) -> None:
    model = facts(tmp_path)
    assert make(model, 14).ubatch > 512
    assert make(model, 120).ubatch == 512  # nothing is read again
    assert make(model, 14, ctx=600).ubatch == 512
    assert make(model, 14, ubatch=96).ubatch == 96
    assert make(model, 3.2).ubatch < 512


def test_cache_type(tmp_path: Path) -> None:
    model = facts(tmp_path)
    assert make(model, 14).kv_type == "f16"
    tight = make(model, 14, ctx=100_000)
    assert tight.kv_type == "q8_0"
    assert any("keys and values as q8_0" in note for note in tight.notes)
    assert make(model, 14, ctx=100_000, kv_type="f16").kv_type == "f16"
    assert make(model, 14, kv_type="q4_0").kv_bytes == kv.memory(model).nbytes(4096, 512, "q4_0")
    keys = {"qwen2moe.embedding_length": 64, "qwen2moe.attention.head_count": 4}
    narrow = gguf_info.inspect(write(tmp_path / "n.gguf", gguf({**MOE, **keys}, ROWS)))
    with pytest.raises(ModelError, match="does not work with a cache of type q8_0"):
        make(narrow, kv_type="q8_0")


def test_a04_server_pools_are_small_and_stated(tmp_path: Path) -> None:
    hybrid = make(facts(tmp_path, SMALL), 14)
    assert 0 < hybrid.prompt_cache <= 512 * MIB
    assert hybrid.checkpoints == 2
    assert hybrid.checkpoint_bytes == kv.memory(hybrid.model).state_bytes > 50 * MIB
    names = [part.name for part in hybrid.parts]
    assert "prompt cache of a server" in names
    assert "context checkpoints: 2" in names
    tight = make(facts(tmp_path, SMALL), 2.2)
    assert tight.prompt_cache == 0
    assert tight.checkpoints * tight.checkpoint_bytes < 0.06 * tight.budget + MIB


def test_a14_larger_than_the_limit_is_fine_the_resident_part_is_not(tmp_path: Path) -> None:
    model = facts(tmp_path)
    assert make(model, 120, limit=8 * GIB).works
    assert not make(model, 120, limit=1 * GIB).works
    assert make(model, 120, limit=8 * GIB).memory_source == "the memory limit given"


def test_another_machine(tmp_path: Path) -> None:
    made = make(facts(tmp_path), 2, ram=16 * GIB)
    assert made.usable == 14 * GIB
    assert "2.0 for the system, assumed" in made.memory_source


def test_what_was_measured_here_is_not_taken_for_another_machine(
    tmp_path: Path,
) -> None:
    model = gguf_info.inspect(write(tmp_path / "m.gguf", gguf(MOE, ROWS)))
    file = tmp_path / "history.jsonl"
    history.record(Disk(history.device_key(model.path), 1 << 20, 8, 2e9), file=file)
    history.record(_run(model, decode_rate=3.0), file=file)
    here = planning.known_machine(model, Options(), file)
    assert (len(here.disks), len(here.runs), len(here.others)) == (1, 1, 1)
    there = planning.known_machine(model, Options(ram=GIB, cores=4), file)
    assert (there.disks, there.runs, there.others) == ((), (), ())
    assert there.cores == 4


def _run(model: ModelFacts, **values: float) -> Run:
    active = speed.active_bytes(model)
    run = Run(history.model_key(model), "direct", 2, 10 * GIB, active, 2.0)
    return replace(run, **values)  # type: ignore[arg-type]


class TestSpeed:
    def test_the_formula(self, tmp_path: Path) -> None:
        model = facts(tmp_path)
        found = make(model, 14, replace(CORES, disk_rate=2e9)).speed
        assert found
        wait = found.reads * found.misses.high / 2e9
        assert found.decode.low == pytest.approx(1 / (found.compute.high + wait))
        wait = found.reads * found.misses.low / 2e9
        assert found.decode.high == pytest.approx(1 / max(found.compute.low, wait))
        assert found.decode.low < found.expected < found.decode.high
        assert found.prefill.low < found.prefill.high

    def test_peers_arithmetic_holds(self, tmp_path: Path) -> None:
        """122B, 3 GB/s, 60 to 70 % hits: others expect 2.9 in turn to 5.2 overlapped."""
        model = facts(tmp_path, "Qwen3.5-122B-A10B Q2_K")
        made = make(model, 14, replace(CORES, disk_rate=3e9))
        assert made.speed
        assert made.speed.decode.low < 1.25 * 2.9
        assert made.speed.decode.high > 5.2

    def test_more_memory_is_never_slower(self, tmp_path: Path) -> None:
        model = facts(tmp_path)
        found = [make(model, gib, ubatch=512).speed for gib in (4, 8, 16, 32, 70)]
        rates = [each.decode.low for each in found if each]
        assert rates == sorted(rates)

    def test_own_runs_take_the_place_of_assumptions(self, tmp_path: Path) -> None:
        """A model measured once: compute .3 s, .2 s of waiting for .8 GB, 60 % hits at 19 %."""
        model = facts(tmp_path)
        routed = weights.split(model).routed
        run = _run(model, stall=0.2, bytes_per_token=8e8, hit_rate=0.6)
        run = replace(run, budget=int(0.19 * routed))
        known = replace(CORES, runs=[run], others=[run])
        made = make(model, 14, known)
        assert made.speed
        assert made.speed.decode.source == "measured"
        assert made.speed.bandwidth.low < 4e9 < made.speed.bandwidth.high
        assert made.speed.compute.low < 0.3 < made.speed.compute.high
        assert made.speed.misses.low < 0.4 < made.speed.misses.high
        assert made.speed.decode.high / made.speed.decode.low < 2
        assert not any(plan_text.CALIBRATE in line for line in plan_text.lines(made))

    def test_other_models_runs_tell_the_compute(self, tmp_path: Path) -> None:
        model = facts(tmp_path)
        run = replace(_run(model, stall=0.1), model="another", active_bytes=10**9)
        made = make(model, 14, replace(CORES, others=[run]))
        assert made.speed
        assert made.speed.compute.source.startswith("measured: runs of other models")
        middle = speed.active_bytes(model) / 2.5e9
        assert made.speed.compute.low < middle < made.speed.compute.high

    def test_a_probe_of_the_disk_is_used(self, tmp_path: Path) -> None:
        disk = Disk("8:1", 1 << 20, 8, 2e9)
        made = make(facts(tmp_path), 14, replace(CORES, disks=[disk]))
        assert made.speed
        assert made.speed.bandwidth.source == "measured: probe of this disk"
        assert made.speed.bandwidth.low < 2e9 < made.speed.bandwidth.high


class TestHitCurve:
    @pytest.mark.parametrize(
        ("architecture", "share", "hit"),
        [
            ("glm4moe", 0.08, 0.50),
            ("glm4moe", 0.33, 0.76),
            ("glm4moe", 0.69, 0.895),
            ("qwen35moe", 0.10, 0.56),
            ("qwen35moe", 0.27, 0.845),
            ("qwen3moe", 0.12, 0.53),
            ("qwen3moe", 0.62, 0.84),
            ("gpt-oss", 0.035, 0.27),
            ("gemma4", 0.125, 0.45),
            ("gemma4", 0.50, 0.89),
            ("deepseek4", 0.09, 0.69),
            ("deepseek4", 0.10, 0.60),
            ("minimax-m2", 0.25, 0.81),
        ],
    )
    def test_published_points_lie_within(self, architecture: str, share: float, hit: float) -> None:
        low, high = hitcurve.published(architecture).hits(share)
        assert low - 0.03 <= hit <= high + 0.03
        assert high - low < 0.35

    def test_a_measurement_is_met(self) -> None:
        found = hitcurve.skew(0.25, 0.5)
        assert found == pytest.approx(0.5)
        low, high = hitcurve.measured([0.5], 1).hits(0.25)
        assert low < 0.5 < high

    @pytest.mark.parametrize(("share", "hit"), [(0, 0.5), (1, 0.5), (0.5, 0), (0.5, 1), (-1, 2)])
    def test_what_says_nothing(self, share: float, hit: float) -> None:
        assert hitcurve.skew(share, hit) is None


class TestCommand:
    @pytest.fixture(autouse=True)
    def own_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SWAPMOE_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)

    def test_lines(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = str(facts(tmp_path).path)
        args = ["plan", path, "--ram", "16GiB", "--disk-bw", "3.5GB/s", "--cores", "8"]
        assert main(args) == 0
        text = capsys.readouterr().out
        assert "verdict: streams well" in text
        assert "bandwidth  3.50 GB/s (given)" in text
        assert "the file holds the header only" in text
        long = [line for line in text.splitlines() if len(line) > 80]
        assert all("note: " in line or "assumed" in line for line in long), long

    def test_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = str(facts(tmp_path).path)
        assert (
            main(["plan", path, "--memory-limit", "32G", "--ram", "64G", "--json", "--ctx", "0"])
            == 0
        )
        found = json.loads(capsys.readouterr().out)
        assert found["memory"]["usable"] == 32 * GIB
        assert found["context"]["tokens"] == 131072
        assert found["speed"]["decode"]["low"] > 0
        assert found["engine"]["io"] == "direct"

    def test_cannot_work(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = str(facts(tmp_path).path)
        assert main(["plan", path, "--memory-limit", "800M"]) == 9
        assert "verdict: cannot work because" in capsys.readouterr().out
        assert main(["plan", path, "--memory-limit", "800M", "--json"]) == 9
        assert json.loads(capsys.readouterr().out)["verdict"] == "cannot work"

    def test_settings_count_for_this_machine(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = '[run]\nctx = 1024\nmemory_limit = "3G"\nthreads = 3\n'
        (tmp_path / "swapmoe.toml").write_text(text)
        path = str(facts(tmp_path, SMALL).path)
        assert main(["plan", path]) == 0
        text = capsys.readouterr().out
        assert "3,072 MiB usable, the memory limit given" in text
        assert "context: 1,024 tokens" in text
        assert "on 3 cores" in text
        assert main(["plan", path, "--ram", "8G", "--cores", "6"]) == 0
        text = capsys.readouterr().out
        assert "8.0 GiB less 1.6 for the system" in text
        assert "on 6 cores" in text

    @pytest.mark.parametrize(
        ("option", "value", "says"),
        [
            ("--ram", "16QB", "unknown unit QB"),
            ("--ram", "0", "must be more than 0"),
            ("--disk-bw", "fast", "not a size"),
            ("--disk-bw", "-1GB/s", "cannot be negative"),
            ("--kv-type", "q9", "is not one of"),
            ("--ctx", "-1", "not in the range"),
        ],
    )
    def test_wrong_values(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, says: str
    ) -> None:
        assert main(["plan", str(tmp_path / "m.gguf"), option, value]) == 2
        assert says in capsys.readouterr().err

    def test_dense_models(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write(tmp_path / "dense.gguf", gguf({"general.architecture": "llama"}, ROWS[:1]))
        assert main(["plan", str(path)]) == 9
        assert "no routed experts" in capsys.readouterr().err


KEYS = [
    *("block_count", "context_length", "embedding_length", "expert_count", "expert_used_count"),
    *("nextn_predict_layers", "attention.head_count", "attention.head_count_kv"),
    *("attention.key_length", "attention.sliding_window", "full_attention_interval"),
    *("ssm.conv_kernel", "ssm.inner_size", "expert_feed_forward_length"),
]


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.dictionaries(
        st.sampled_from(KEYS),
        st.integers(0, 2**32 - 1) | st.integers(0, 64) | st.lists(st.integers(0, 2**32 - 1)),
    ),
    st.sampled_from(["qwen2moe", "qwen35moe", "deepseek4", "gpt-oss", "jamba", "llama4"]),
    st.sampled_from([512 * MIB, 4 * GIB, 64 * GIB]),
)
def test_any_numbers_in_the_header(
    tmp_path: Path, keys: dict[str, object], arch: str, usable: int
) -> None:
    pairs = {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in keys.items()}}
    path = write(tmp_path / "any.gguf", gguf(pairs, ROWS))
    try:
        made = planning.make(
            gguf_info.inspect(path), here=replace(HERE, usable=usable), machine=CORES
        )
    except ModelError:
        return
    assert list(plan_text.lines(made))
    json.dumps(plan_text.to_json(made))
