"""Comparing an architecture's logits over builds and modes, and the table of what was found."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from swapmoe.gguf_info import ModelFacts, inspect
from swapmoe.run import capture
from tests.support.logits import Logits, LogitsProgram
from tests.support.models import rotate_experts

Options = dict[str, str | int]

SEED = "1"
PAGE_SIZE = 4096
_SKIPPED = re.compile(r"save_models: (\S+) model \(MoE\) is unsupported")


def _keep(facts: ModelFacts) -> Options:
    return {"keep": facts.expert_used_count}


def _cache(facts: ModelFacts) -> Options:
    return {"cache": facts.bytes_per_token(facts.expert_used_count)}


def _few_slots(facts: ModelFacts) -> Options:
    """Room for a few slices of each size (pages, wherever in one they begin), and less than one
    token needs."""
    slots = {-(-(tensor.slice_bytes + PAGE_SIZE - 1) // PAGE_SIZE) for tensor in facts.routed}
    few = facts.bytes_per_token(facts.expert_used_count) // 2 + 8 * 8192
    return {"cache": max(few, PAGE_SIZE * sum(slots))}


MODES: dict[str, Callable[[ModelFacts], Options]] = {
    "off": lambda facts: {},
    "fault": lambda facts: {"io": "fault"},
    "mmap": lambda facts: {"io": "mmap"},
    "prefetch": lambda facts: {"io": "mmap", "prefetch": 1},
    "keep-recent": lambda facts: {"io": "mmap"} | _keep(facts),
    "cache-size": lambda facts: {"io": "fault"} | _cache(facts),
    "direct": lambda facts: {"io": "direct"} | _few_slots(facts),
    "all": lambda facts: {"io": "mmap", "prefetch": 1} | _keep(facts) | _cache(facts),
}
"""Keep-recent and cache size at their floors, where they drop the most."""
EFFECTS = {
    "mmap": "hinted",
    "prefetch": "predicted",
    "keep-recent": "evicted",
    "cache-size": "evicted",
    "direct": "evicted",
    "all": "evicted",
}
"""The counter that shows that a mode did something."""


@dataclass(frozen=True)
class Compared:
    """One model in all modes against the unpatched build."""

    name: str
    facts: ModelFacts
    same: dict[str, bool]
    slices: int
    routed: int
    said: str
    idle: list[str]
    unseen: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """Whether every mode gave the bytes of the unpatched build."""
        return all(self.same.values())

    @property
    def kinds(self) -> list[str]:
        """The kinds of routed tensors, in the order of use."""
        found = {tensor.name.split(".")[2] for tensor in self.facts.routed}
        return sorted(found, key=("ffn_gate_exps ffn_up_exps ffn_gate_up_exps ffn_down_exps").index)


def compare(
    name: str, model: Path, base: LogitsProgram, patched: LogitsProgram, *, probe: Path | None
) -> Compared:
    """Run a model in every mode; with `probe`, a file to write, see that mixed-up experts show."""
    facts = inspect(model)
    wanted = base.run(model)
    found = {mode: patched.run(model, **options(facts)) for mode, options in MODES.items()}
    streamed = found["mmap"]
    result = Compared(
        name,
        facts,
        {mode: got.values == wanted.values for mode, got in found.items()},
        streamed.slices,
        streamed.statistics.get("routed", 0),
        _said(streamed),
        _idle(facts, found),
    )
    if probe is not None:
        for kind in result.kinds:
            rotate_experts(model, probe, kind)
            if base.run(probe).values == wanted.values:
                result.unseen.append(kind)
    return result


def _idle(facts: ModelFacts, found: dict[str, Logits]) -> list[str]:
    """Return the modes that did nothing, but for foreseeing where no layer comes before another."""
    single = len({tensor.layer for tensor in facts.routed}) == 1
    return [
        mode
        for mode, counter in EFFECTS.items()
        if not found[mode].statistics.get(counter) and not (single and mode == "prefetch")
    ]


def _said(run: Logits) -> str:
    lines = [line for line in run.log.splitlines() if "without expert streaming" in line]
    return lines[0].partition("expert_stream: ")[2] if lines else ""


@dataclass(frozen=True)
class Saved:
    """The models that upstream's program wrote, and the MoE architectures it does not write."""

    models: dict[str, Path]
    skipped: list[str]


def save_upstream_models(program: Path, folder: Path) -> Saved:
    """Let test-llama-archs write its MoE models."""
    folder.mkdir()
    done = capture([program, "-s", SEED, "-o", folder], timeout=300)
    models = {path.name.removesuffix("-moe.gguf"): path for path in folder.glob("*-moe.gguf")}
    skipped = _SKIPPED.findall(done.stdout + done.stderr)
    return Saved(dict(sorted(models.items())), sorted(set(skipped)))


@dataclass(frozen=True)
class Entry:
    """An architecture: where its model came from, and what was compared (small, then widened)."""

    name: str
    origin: str
    runs: list[Compared]

    @property
    def cells(self) -> list[str]:
        """The cells of its row."""
        last = self.runs[-1]
        kinds = ", ".join(kind.removeprefix("ffn_").removesuffix("_exps") for kind in last.kinds)
        count = len(last.facts.routed)
        shapes = [_shape(run.facts) for run in self.runs if count]
        shapes += [""] * (2 - len(shapes))
        if self.origin == GENERATOR:
            shapes.reverse()
        same = (all(run.same[mode] for run in self.runs) for mode in MODES)
        return [
            self.name,
            self.origin,
            f"{count}: {kinds}" if count else "none",
            *shapes,
            *("yes" if good else "**no**" for good in same),
        ]


def _shape(facts: ModelFacts) -> str:
    types = ", ".join(sorted({tensor.type_name for tensor in facts.routed}))
    return f"{facts.expert_used_count} of {facts.expert_count}, {types}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


def table(entries: list[Entry]) -> str:
    """Return a Markdown table, a line for each architecture."""
    head = ["architecture", "model by", "routed tensors", "as written", "widened or larger", *MODES]
    return _row(head) + _row(["---"] * len(head)) + "".join(_row(entry.cells) for entry in entries)


UPSTREAM, LOADER, GENERATOR = "test-llama-archs", "loader", "make_model.py"
NOTICE = "<!-- generated by tests/e2e/test_architectures.py (scripts/test --full) -->"
INTRODUCTION = """
Each model runs with fixed token ids in the unpatched and in the patched build; the logits of all
tokens, in ubatches of 1, 7 and 33, are compared byte by byte. "yes" means that they are equal, for
the model as written and for the widened one.

- Models: `test-llama-archs` is llama.cpp's own program, which writes small F32 models with random
  weights. *loader*: that program leaves the architecture out, so llama.cpp's loader was given its
  metadata and asked which tensors it wants. `make_model.py` generates the others. *Widened* models
  have more experts, in a block format (`scripts/make_model.py --from`). "4 of 16" means 4 experts
  used per token, 16 in a layer.
- Modes: *off* is the patched build without streaming; *prefetch*, *keep-recent* and *all* (the
  three together) run with `--expert-io mmap`, *cache-size* with `fault`; keep-recent and cache
  size are at their floors, where they drop the most.
- Each widened or generated model was also run with the experts of one tensor kind mixed up, and
  the logits changed: the comparison would have seen a wrong slice. In every mode but *off* and
  *fault* the engine's counters show that it read ahead, predicted or dropped slices.
- Left out, because they have no logits of their own: the embedding models `nomic-bert-moe` and
  `llama-embed`, and the drafter `dflash`.
"""


def page(tag: str, entries: list[Entry]) -> str:
    """Return the page of the documentation."""
    notes = [f"- {entry.name}: {entry.runs[0].said}." for entry in entries if entry.runs[0].said]
    notes += [
        f"- {entry.name}: llama.cpp loads the experts and never uses them; nothing was routed, and "
        "no expert shows."
        for entry in entries
        if entry.runs[-1].slices and not entry.runs[-1].routed
    ]
    count = len({entry.name for entry in entries})
    return (
        f"# Architectures\n\n{NOTICE}\n{INTRODUCTION}\n"
        f"{count} architectures of llama.cpp {tag}:\n\n{table(entries)}\n" + "\n".join(notes) + "\n"
    )
