"""Every MoE architecture that llama.cpp can load: the same logits, streamed or not, bit by bit.

Models come from upstream's own test program, as written and widened, and from our generator for
what that program does not write. The full run writes docs/architectures.md.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from swapmoe.errors import ModelError
from swapmoe.model_widen import Widening, widen
from swapmoe.receipts import Receipt
from tests.support import templates
from tests.support.archs import (
    GENERATOR,
    LOADER,
    MODES,
    UPSTREAM,
    Compared,
    Entry,
    Saved,
    compare,
    page,
)
from tests.support.llama import Llama
from tests.support.logits import LogitsProgram, compile_against, compile_logits
from tests.support.models import make_tiny
from tests.support.templates import TEMPLATES, write_template

pytestmark = pytest.mark.skipif(os.name == "nt", reason="compiles as Unix compilers do")

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
GENERATED = ("tiny-deepseek4", "tiny-gemma4", "tiny-gpt-oss", "tiny-laguna")
# Biases, experts beside the experts, weights before the product, gate and up in one, recurrence.
SAMPLE = ("gpt-oss", "grovemoe", "llama4", "deepseek2", "qwen3next", "kimi-linear")
# The loader takes experts, and the graph has no place for them.
UNUSED = {"refact"}
WITHOUT_LOGITS = {"llama-embed"}
# Of 16 experts its router lets a short prompt use too few for the next layer to be read ahead.
WIDENED = {"phimoe": Widening(experts=8)}


@pytest.fixture(scope="session")
def base_logits(base: Llama, tmp_path_factory: pytest.TempPathFactory) -> LogitsProgram:
    """The program that writes logits, unpatched."""
    return compile_logits(base.bin_dir, tmp_path_factory.mktemp("logits") / "base")


@pytest.fixture(scope="session")
def patched_logits(patched: Llama, tmp_path_factory: pytest.TempPathFactory) -> LogitsProgram:
    """The program that writes logits, patched."""
    return compile_logits(patched.bin_dir, tmp_path_factory.mktemp("logits") / "patched")


@pytest.fixture(scope="session")
def template(base: Llama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that writes models of what the unpatched loader asks for."""
    return compile_against(
        base.bin_dir, templates.SOURCE, tmp_path_factory.mktemp("template") / "template"
    )


@pytest.fixture
def comparing(
    base_logits: LogitsProgram, patched_logits: LogitsProgram, tmp_path: Path
) -> Callable[[str, Path], Compared]:
    """Compare one model in all modes; with its experts mixed up, its logits must change."""

    def run(name: str, model: Path) -> Compared:
        return compare(name, model, base_logits, patched_logits, probe=tmp_path / "probe.gguf")

    return run


def faults(found: Compared) -> list[str]:
    """Say what is wrong with a model that has routed experts."""
    wrong = [f"{found.name}: {mode} differs" for mode, same in found.same.items() if not same]
    if found.slices != found.facts.slices_without_nextn:
        wrong.append(f"{found.name}: tracks {found.slices} of {found.facts.slices} slices")
    if found.name in UNUSED:
        return wrong + ([f"{found.name}: routes"] if found.routed else [])
    if not found.routed:
        wrong.append(f"{found.name}: nothing was routed")
    wrong += [f"{found.name}: {mode} did nothing" for mode in found.idle]
    return wrong + [f"{found.name}: {kind} mixed up does not show" for kind in found.unseen]


@pytest.mark.parametrize("name", SAMPLE)
def test_upstream_models_widened(
    comparing: Callable[[str, Path], Compared], saved: Saved, tmp_path: Path, name: str
) -> None:
    made = widen(saved.models[name], tmp_path / "wide.gguf", Widening())
    assert made.quantised == len(made.routed)
    assert not faults(comparing(name, made.path))


def test_experts_without_gate_tensors(
    comparing: Callable[[str, Path], Compared], template: Path, tmp_path: Path
) -> None:
    model = write_template(template, "nemotron_h_moe", tmp_path / "small.gguf")
    made = widen(model, tmp_path / "wide.gguf", Widening())
    found = comparing("nemotron_h_moe", made.path)
    assert found.kinds == ["ffn_up_exps", "ffn_down_exps"]
    assert not faults(found)


@pytest.mark.parametrize("preset", GENERATED)
def test_generated_models(
    comparing: Callable[[str, Path], Compared], tmp_path: Path, preset: str
) -> None:
    assert not faults(comparing(preset, make_tiny(tmp_path, preset)))


def test_hash_routed_layers_are_foreseen(patched_logits: LogitsProgram, tmp_path: Path) -> None:
    """Which experts they use is known before the pass: all of it predicted, nothing in vain."""
    model = make_tiny(tmp_path, "tiny-deepseek4", layers=3, hash_layers=3, mtp_layers=0)
    counted = patched_logits.run(model, io="mmap", prefetch=1).statistics
    assert counted["predicted"] == counted["predicted_used"] == counted["routed"] > 0
    assert counted["prefetch_wasted"] == 0


def test_models_without_experts_say_so_and_run(
    base_logits: LogitsProgram, patched_logits: LogitsProgram, tmp_path: Path
) -> None:
    model = make_tiny(tmp_path, "tiny-dense")
    found = compare("tiny-dense", model, base_logits, patched_logits, probe=None)
    assert found.said == "model has no routed expert tensors, loading it without expert streaming"
    assert found.same == dict.fromkeys(MODES, True)


@pytest.mark.full
def test_every_architecture(
    receipt: Receipt,
    base_logits: LogitsProgram,
    comparing: Callable[[str, Path], Compared],
    patched_logits: LogitsProgram,
    saved: Saved,
    template: Path,
    tmp_path: Path,
) -> None:
    """The whole matrix; writes the page of the documentation, whatever the outcome."""
    small = {name: (UPSTREAM, model) for name, model in saved.models.items()}
    for name in TEMPLATES:
        small[name] = LOADER, write_template(template, name, tmp_path / f"{name}.gguf")
    entries: list[Entry] = []
    wrong: list[str] = []
    for name, (origin, model) in small.items():
        found = compare(name, model, base_logits, patched_logits, probe=None)
        entries.append(Entry(name, origin, [found]))
        if not found.identical:
            wrong.append(f"{name}: as written: {found.same}")
        try:
            made = widen(model, tmp_path / "wide.gguf", WIDENED.get(name, Widening()), force=True)
        except ModelError as error:
            if found.facts.routed or not found.said:
                wrong.append(f"{name}: {error.message}")
            continue
        wide = comparing(name, made.path)
        entries[-1].runs.append(wide)
        wrong += faults(wide)
    for preset in GENERATED:
        made_here = comparing(preset.removeprefix("tiny-"), make_tiny(tmp_path, preset))
        entries.append(Entry(made_here.name, GENERATOR, [made_here]))
        wrong += faults(made_here)
    PAGE.write_text(page(receipt.tag, entries))
    assert not wrong
    covered = {entry.name for entry in entries}
    assert set(saved.skipped) - covered == WITHOUT_LOGITS, "new in llama.cpp: add a template"
