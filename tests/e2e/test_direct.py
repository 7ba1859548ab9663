"""The direct engine computes what the unpatched build computes, however little memory it gets."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from swapmoe.gguf_info import inspect
from tests.support.direct import BUDGETS, TIGHT
from tests.support.llama import Llama, streaming
from tests.support.logits import Logits, LogitsProgram, compile_logits
from tests.support.models import make_tiny, rotate_experts

MIB = 1 << 20
ROOMY = {"embd": 256, "ffn": 256, "shared_ffn": 256, "heads": 16}
MODELS = {
    "qwen2moe": ("tiny", {"experts": 16, "used": 4}),
    "qwen3moe": ("tiny-qwen3moe", {"experts": 32, "used": 8, "layers": 4, "locality": 0.5}),
    "Q4_K": ("tiny", {"experts": 16, "type": "Q4_K", "dense_type": "Q6_K", **ROOMY}),
    "IQ1_M and Q2_K": (
        "tiny-qwen3moe",
        {"experts": 16, "used": 4, "type": "IQ1_M", "down_type": "Q2_K", **ROOMY},
    ),
    "gate and up in one": ("tiny-gemma4", {}),
    "biases": ("tiny-gpt-oss", {}),
    "hash-routed": ("tiny-deepseek4", {}),
    # Slices of more than one read.
    "2 MiB": (
        "tiny-qwen3moe",
        {"layers": 1, "type": "F32", "embd": 512, "ffn": 1088, "heads": 32},
    ),
}
UBATCHES = (1, 7, 64, 512, 2048)
THREADS = (1, 2, 4)
SHARDS = (1, 3)


@dataclass(frozen=True)
class Case:
    """One run of the direct engine, compared with the unpatched build."""

    model: str
    budget: str
    ubatch: int
    threads: int
    shards: int = 1
    prefetch: int = 0

    def __str__(self) -> str:
        kind = "-prefetch" if self.prefetch else ""
        return f"{self.model}-{self.budget}-{self.ubatch}-{self.threads}-{self.shards}{kind}"


def covering() -> list[Case]:
    """Every model with every budget; the other sizes take turns."""
    pairs = itertools.product(MODELS, BUDGETS)
    cases = [
        Case(
            model,
            budget,
            ubatch=UBATCHES[number % 4],
            threads=THREADS[number % 3],
            shards=SHARDS[number % 2],
            prefetch=int(number % 5 > 2),
        )
        for number, (model, budget) in enumerate(pairs)
    ]
    long = [
        Case("qwen3moe", "8 slices", 2048, 2),
        Case("IQ1_M and Q2_K", "half", 2048, 2, 3, prefetch=1),
    ]
    return cases + long


def everything() -> Iterator[Case]:
    """Every model with every budget, micro-batch and number of threads; the rest takes turns."""
    sizes = itertools.product(MODELS, BUDGETS, UBATCHES, THREADS)
    for number, (model, budget, ubatch, threads) in enumerate(sizes):
        shards, prefetch = SHARDS[number % 2], number // 2 % 2
        yield Case(model, budget, ubatch, threads, shards, prefetch)


@dataclass(frozen=True)
class Comparing:
    """Runs both builds; what the unpatched one says of a model and sizes is kept."""

    base: LogitsProgram
    patched: LogitsProgram
    folder: Path
    wanted: dict[tuple[str, int, int], bytes]

    def model(self, name: str, shards: int) -> Path:
        """Return a model, written when it is not there yet."""
        preset, changes = MODELS[name]
        folder = self.folder / f"{name} {shards}"
        if not folder.is_dir():
            folder.mkdir()
            make_tiny(folder, preset, shards=shards, **changes)
        return min(folder.iterdir())

    def faults(self, case: Case) -> list[str]:
        """Return what is wrong with a case."""
        path = self.model(case.model, case.shards)
        sizes = {"ubatch": case.ubatch, "threads": case.threads}
        key = case.model, case.ubatch, case.threads
        if key not in self.wanted:
            self.wanted[key] = self.base.run(path, **sizes).values
        cache = BUDGETS[case.budget](inspect(path))
        found = self.patched.run(path, io="direct", cache=cache, prefetch=case.prefetch, **sizes)
        wrong = [] if found.values == self.wanted[key] else [f"{case}: other logits"]
        return wrong + [f"{case}: {text}" for text in miscounted(found, case.budget, cache)]


def miscounted(found: Logits, budget: str, cache: int) -> list[str]:
    """Say what the engine's counters show that cannot be."""
    counted = found.statistics
    wrong = []
    if counted["hits"] + counted["misses"] != counted["routed"] or not counted["routed"]:
        wrong.append(f"{counted['hits']} hits and {counted['misses']} misses of what was routed")
    if not 0 < counted["budget"] <= cache or counted["resident_bytes"] > counted["budget"]:
        wrong.append(f"{counted['resident_bytes']} of {counted['budget']} bytes, {cache} allowed")
    if counted["io_errors"]:
        wrong.append(f"{counted['io_errors']} errors")
    if budget == "all" and counted["evicted"]:
        wrong.append(f"{counted['evicted']} dropped without need")
    if budget in TIGHT and not counted["evicted"]:
        wrong.append("nothing was dropped")
    return wrong


@pytest.fixture(scope="module")
def comparing(base: Llama, patched: Llama, tmp_path_factory: pytest.TempPathFactory) -> Comparing:
    folder = tmp_path_factory.mktemp("direct")
    programs = [
        compile_logits(llama.bin_dir, folder / name)
        for llama, name in ((base, "base"), (patched, "patched"))
    ]
    models = folder / "models"
    models.mkdir()
    return Comparing(*programs, models, {})


@pytest.mark.parametrize("case", covering(), ids=str)
def test_same_logits(comparing: Comparing, case: Case) -> None:
    assert not comparing.faults(case)


@pytest.mark.full
def test_same_logits_in_the_whole_matrix(comparing: Comparing) -> None:
    wrong = [fault for case in everything() for fault in comparing.faults(case)]
    assert not wrong


@pytest.mark.parametrize("readers", [1, 3, 32])
def test_any_number_of_readers(comparing: Comparing, readers: int) -> None:
    path = comparing.model("qwen3moe", 1)
    cache = BUDGETS["token"](inspect(path))
    options = {"io": "direct", "cache": cache, "io-threads": readers}
    found = comparing.patched.run(path, ubatch=64, **options)
    assert found.values == comparing.base.run(path, ubatch=64).values
    assert f"{readers} reader threads" in found.log


@pytest.mark.parametrize("kind", ["gate", "up", "down"])
def test_mixed_up_experts_show(comparing: Comparing, tmp_path: Path, kind: str) -> None:
    """The comparisons above would see a slice in the place of another."""
    path, probe = comparing.model("qwen2moe", 1), tmp_path / "probe.gguf"
    rotate_experts(path, probe, f"ffn_{kind}_exps")
    options = {"io": "direct", "cache": BUDGETS["token"](inspect(path))}
    mixed = comparing.patched.run(probe, **options).values
    assert mixed != comparing.patched.run(path, **options).values
    assert mixed == comparing.base.run(probe).values


@pytest.mark.parametrize("mib", [1, 0])
def test_saved_logits_are_those_of_the_unpatched_build(
    base: Llama, patched: Llama, tmp_path: Path, mib: int
) -> None:
    """The files of llama-perplexity --save-all-logits, byte by byte."""
    preset, changes = MODELS["qwen3moe"]
    model = make_tiny(tmp_path, preset, **changes)
    plain = base.logits(model, tmp_path, "--no-repack", "--no-warmup")
    flags = ("--no-repack", *streaming("direct"), "--expert-cache-size", str(mib))
    assert patched.logits(model, tmp_path, *flags) == plain
    assert patched.session(model, tmp_path, *flags) == base.session(
        model, tmp_path, "--no-repack", "--no-warmup"
    )
