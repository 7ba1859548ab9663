"""What inspect and plan work out from the header, against what the programs print."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from swapmoe import attention, compute, gguf_info, kv, weights
from swapmoe.gguf_info import ModelFacts
from swapmoe.run import capture, clean_env
from swapmoe.sizes import MIB
from tests.support.archs import Saved
from tests.support.llama import Llama
from tests.support.logits import compile_against
from tests.support.models import make_tiny
from tests.support.templates import SOURCE, TEMPLATES, write_template

PROMPT, UBATCH = 700, 128
GENERATED = ("tiny", "tiny-deepseek4", "tiny-gemma4", "tiny-gpt-oss", "tiny-laguna")
DIGIT = 0.01
"""MiB: sizes are printed with two decimals, rounded."""

_CONTEXT = re.compile(r"(?:KV|RS|state) buffer size =\s*([\d.]+) MiB")
_COMPUTE = re.compile(r"CPU compute buffer size =\s*([\d.]+) MiB")
_WEIGHTS = re.compile(r"(\w+) model buffer size =\s*([\d.]+) MiB")


@dataclass(frozen=True)
class Printed:
    """Sizes in MiB: of what a context keeps (and of how many buffers), to compute, of weights.

    `weights` is None when some were repacked (for AMX, say): they are printed twice then.
    """

    context: float
    buffers: int
    compute: float
    weights: float | None


def bench(llama: Llama, model: Path, kv_type: str = "f16") -> Printed:
    """Let llama-bench, which needs no vocabulary, make a context of PROMPT tokens."""
    options = f"-p {PROMPT} -n 0 -r 1 -b {UBATCH} -ub {UBATCH} -t 2 -v --no-warmup -lm mmap"
    types = f"-ctk {kv_type} -ctv {kv_type} -fa auto"
    argv: list[str | Path] = [
        llama.bin_dir / "llama-bench",
        "-m",
        model,
        *options.split(),
        *types.split(),
    ]
    env = clean_env({"OMP_WAIT_POLICY": "passive"}, drop_prefixes=("LLAMA_",))
    log = capture(argv, env=env, timeout=100).stderr
    kept = [float(size) for size in _CONTEXT.findall(log)]
    (working,) = _COMPUTE.findall(log)
    loaded = dict(_WEIGHTS.findall(log))
    mapped = float(loaded["CPU_Mapped"]) if set(loaded) == {"CPU_Mapped"} else None
    return Printed(sum(kept), len(kept), float(working), mapped)


def check(name: str, facts: ModelFacts, printed: Printed, kv_type: str = "f16") -> Iterator[str]:
    """Say what is wrong: the context is exact, weights nearly, compute buffers an estimate."""
    context = kv.memory(facts).nbytes(PROMPT, UBATCH, kv_type) / MIB
    if abs(context - printed.context) > DIGIT * max(1, printed.buffers):
        yield f"{name} {kv_type}: context {printed.context} MiB, not {context:.3f}"
    working = compute.buffer_bytes(facts, 768, UBATCH, outputs=UBATCH) / MIB
    if not 0.75 * printed.compute <= working <= 1.9 * printed.compute + 0.5:
        yield f"{name}: compute buffers of {printed.compute} MiB, not {working:.2f}"
    split = weights.split(facts)
    used = (split.routed + split.dense + split.lookup) / MIB
    most = used + split.unused / MIB
    if printed.weights and not 0.99 * used - 0.1 <= printed.weights <= 1.01 * most + 0.1:
        yield f"{name}: weights of {printed.weights} MiB, not {used:.2f}"


def test_generated_models(base: Llama, tmp_path: Path) -> None:
    wrong: list[str] = []
    for preset in GENERATED:
        model = make_tiny(tmp_path, preset)
        wrong += check(preset, gguf_info.inspect(model), bench(base, model))
    assert not wrong


def test_every_architecture_of_upstream(base: Llama, saved: Saved) -> None:
    wrong: list[str] = []
    newer = 0
    for name, model in saved.models.items():
        facts = gguf_info.inspect(model)
        if facts.architecture in attention.NEWER:
            newer += 1
            assert f"what {facts.architecture} keeps" in kv.memory(facts).assumed
        else:
            wrong += check(name, facts, bench(base, model))
    assert not wrong
    assert newer <= 5
    assert len(saved.models) > 30


@pytest.mark.skipif(os.name == "nt", reason="compiles as Unix compilers do")
def test_architectures_of_templates(base: Llama, tmp_path: Path) -> None:
    template = compile_against(base.bin_dir, SOURCE, tmp_path / "template")
    wrong: list[str] = []
    for name in TEMPLATES:
        model = write_template(template, name, tmp_path / f"{name}.gguf")
        wrong += check(name, gguf_info.inspect(model), bench(base, model))
    assert not wrong


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_quantised_contexts(base: Llama, saved: Saved, kv_type: str) -> None:
    wrong: list[str] = []
    for name in ("deepseek2", "gpt-oss", "llama4", "qwen35moe", "glm-dsa", "qwen3moe"):
        facts = gguf_info.inspect(saved.models[name])
        assert kv.memory(facts).fits_type(kv_type)
        wrong += check(name, facts, bench(base, saved.models[name], kv_type), kv_type)
    assert not wrong


def test_larger_shapes(base: Llama, tmp_path: Path) -> None:
    """Where the experts, not the rounding, decide the compute buffers."""
    wide = {"embd": 512, "experts": 16, "used": 8, "ffn": 256, "heads": 8, "head_dim": 64}
    wrong: list[str] = []
    for preset in ("tiny-qwen3moe", "tiny-gpt-oss", "tiny-gemma4"):
        model = make_tiny(tmp_path, preset, **wide, layers=4, kv_heads=2)
        wrong += check(preset, gguf_info.inspect(model), bench(base, model))
    assert not wrong


def test_llama_cli_keeps_the_logits_of_one_token(patched: Llama, tmp_path: Path) -> None:
    """What `swapmoe run` and `serve` start needs no room for the logits of a whole micro-batch."""
    model = make_tiny(tmp_path, "tiny", vocab=20_000)
    facts = gguf_info.inspect(model)
    options = "-p a -n 1 -st -c 1024 -ub 512 -t 2 -lv 4 --no-warmup --expert-streaming"
    argv: list[str | Path] = [patched.bin_dir / "llama-cli", "-m", model, *options.split()]
    done = capture(argv, env=clean_env(drop_prefixes=("LLAMA_",)), timeout=100)
    printed = float(_COMPUTE.findall(done.stdout + done.stderr)[-1])
    one, whole = (compute.buffer_bytes(facts, 1024, 512, outputs=n) / MIB for n in (1, 512))
    assert printed < 2 * one + 1
    assert whole > 3 * printed
