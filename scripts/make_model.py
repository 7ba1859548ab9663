#!/usr/bin/env python3
"""Write a deterministic Mixture-of-Experts GGUF of any size, for tests and measurements."""

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from swapmoe import console
from swapmoe.errors import SwapmoeError, UsageError
from swapmoe.model_archs import ARCHITECTURES
from swapmoe.model_pack import ROW_TYPES, TENSOR_TYPES
from swapmoe.model_widen import Widening, widen
from swapmoe.models import PRESETS, total_bytes, write_model

SIZES = {
    "layers": "Number of layers.",
    "embd": "Embedding length.",
    "experts": "Experts per layer.",
    "used": "Experts used per token.",
    "ffn": "Feed-forward length of one expert (or of a dense layer).",
    "shared_ffn": "Feed-forward length of the shared expert, where there is one.",
    "heads": "Attention heads.",
    "kv_heads": "Key/value heads.",
    "head_dim": "Length of one head.",
    "vocab": "Tokens; all 256 bytes are among them.",
    "ctx": "Context length stated in the file.",
    "seed": "Seed of every tensor.",
    "dense_layers": "Leading layers without experts (laguna).",
    "hash_layers": "Leading layers that choose experts by token id (deepseek4).",
    "mtp_layers": "Blocks that predict further tokens, on top of the layers (deepseek4).",
}
LOCALITY = (
    "Routing skew in [0, 1): the part of a token embedding that all tokens share. 0 is nearly "
    "uniform; with 27 % of 128 experts cached, LRU hits 0.27 at 0, 0.70 at 0.5, 0.93 at 0.7."
)


def size_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add one integer option for each of SIZES."""
    for name, text in reversed(SIZES.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, type=int, help=text)(command)
    return command


def write_spec(
    preset: str, shards: int, force: bool, output: Path, changes: dict[str, Any]
) -> None:
    """Write a generated model and print its files."""
    spec = replace(PRESETS[preset], **changes)
    size = total_bytes(spec)
    description = f"writing {output.name} ({size / 1e6:,.1f} MB, {spec.slices:,} expert slices)"
    with console.progress(description, size) as progress:
        for path in write_model(spec, output, shards=shards, force=force, progress=progress):
            print(path)


def write_widened(source: Path, force: bool, output: Path, changes: dict[str, Any]) -> None:
    """Write a widened copy and print its name, and on stderr what it holds."""
    known = {field.name for field in fields(Widening)}
    if extra := [f"--{name.replace('_', '-')}" for name in changes if name not in known]:
        raise UsageError(f"--from keeps all other sizes: {', '.join(extra)} does not go with it")
    how = Widening(**changes)
    made = widen(source, output, how, force=force)
    console.say(
        f"{how.experts} experts, {how.used} used; "
        f"{made.quantised} of {len(made.routed)} routed tensors in {how.type}"
    )
    for name, reason in made.kept.items():
        console.note(f"{name} keeps its type: {reason}")
    print(made.path)


@click.command(context_settings={"show_default": True})
@click.option("--preset", type=click.Choice(list(PRESETS)), help="Where to start.  [tiny]")
@click.option(
    "--from", "source", type=click.Path(path_type=Path), help="Widen this small MoE model instead."
)
@click.option("--arch", type=click.Choice(list(ARCHITECTURES)), help="Architecture.")
@size_options
@click.option("--type", type=click.Choice(TENSOR_TYPES), help="Type of the expert tensors.")
@click.option("--down-type", type=click.Choice(TENSOR_TYPES), help="Type of down [--type].")
@click.option(
    "--dense-type", type=click.Choice(TENSOR_TYPES), help="Type of other weights [--type]."
)
@click.option("--embd-type", type=click.Choice(ROW_TYPES), help="Type of embeddings and output.")
@click.option("--locality", type=float, help=LOCALITY)
@click.option("--shards", type=int, default=1, help="Files to split the model into.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="GGUF file.")
def main(
    preset: str | None,
    source: Path | None,
    shards: int,
    force: bool,
    output: Path,
    **options: Any,
) -> None:
    """Write a model; options override the preset. Prints the files written, on stdout.

    --from takes a small model such as upstream's test-llama-archs writes and gives it --experts
    (16), --used (4) and --type (Q4_0) for the routed experts; all else stays as it is.

    Exit codes: 2 a shape that does not work, 9 no space, an existing file or a model without
    experts.
    """
    changes = {name: value for name, value in options.items() if value is not None}
    try:
        if source is None:
            write_spec(preset or "tiny", shards, force, output, changes)
        elif preset is not None or shards != 1:
            raise UsageError("--preset and --shards do not go with --from")
        else:
            write_widened(source, force, output, changes)
    except SwapmoeError as error:
        console.print_error(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
