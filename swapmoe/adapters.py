"""Looks into the headers of LoRA adapters that are passed on: do they fit the model's experts?

A release build of llama.cpp does not compare the number of experts and writes past the end.
"""

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from swapmoe.errors import ModelError
from swapmoe.flags import Given
from swapmoe.gguf_header import Header, read_header
from swapmoe.gguf_info import ModelFacts

_EXPERTS = re.compile(r"blk\.\d+\.ffn_(gate|up|down|gate_up)_exps\.weight\.lora_[ab]")


def paths(given: Sequence[Given]) -> list[Path]:
    """The adapters named by these options, in llama.cpp's own notation."""
    found: list[Path] = []
    for option in given:
        if option.name in ("--lora", "--lora-scaled") and option.value:
            for item in next(csv.reader([option.value]), []):
                name = item.rpartition(":")[0] if option.name == "--lora-scaled" else item
                found.append(Path(name or item))
    return found


def check(given: Sequence[Given], facts: ModelFacts) -> list[str]:
    """What the user should know about the adapters.

    Raises `ModelError` for one that is broken, of another architecture, or with another number of
    experts than the model.
    """
    remarks = []
    for path in paths(given):
        header = read_header(path)
        _check_kind(header, facts)
        for tensor in header.tensors:
            if not _EXPERTS.fullmatch(tensor.name):
                continue
            experts = tensor.dims[2] if len(tensor.dims) > 2 else 1
            if experts != facts.expert_count:
                raise ModelError(
                    f"the adapter {path.name} was made for {experts} experts per layer; "
                    f"{facts.path.name} has {facts.expert_count}",
                    evidence=[f"{tensor.name} has the shape {list(tensor.dims)}", f"file: {path}"],
                    hint="use an adapter of this very model",
                )
        size = sum(tensor.nbytes for tensor in header.tensors)
        remarks.append(f"the adapter {path.name} stays in memory: {size:,} bytes")
    return remarks


def _check_kind(header: Header, facts: ModelFacts) -> None:
    kind = (header.text("general.type"), header.text("adapter.type"))
    architecture = header.text("general.architecture")
    if kind != ("adapter", "lora"):
        raise ModelError(
            f"{header.path.name} is not a LoRA adapter",
            evidence=[f"general.type, adapter.type = {kind}", f"file: {header.path}"],
            hint="give a GGUF made with llama.cpp's convert_lora_to_gguf.py",
        )
    if architecture != facts.architecture:
        raise ModelError(
            f"the adapter {header.path.name} is for {architecture or 'no architecture'}, "
            f"{facts.path.name} is a {facts.architecture} model",
            hint="use an adapter of this very model",
        )
