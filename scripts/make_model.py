#!/usr/bin/env python3
"""Write a deterministic Mixture-of-Experts GGUF of any size, for tests and measurements."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from swapmoe import console
from swapmoe.errors import SwapmoeError
from swapmoe.model_pack import ROW_TYPES, TENSOR_TYPES
from swapmoe.model_spec import ARCHITECTURES
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


@click.command(context_settings={"show_default": True})
@click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny", help="Where to start.")
@click.option("--arch", type=click.Choice(list(ARCHITECTURES)), help="Architecture.")
@size_options
@click.option("--type", type=click.Choice(TENSOR_TYPES), help="Type of the expert tensors.")
@click.option(
    "--dense-type", type=click.Choice(TENSOR_TYPES), help="Type of other weights [--type]."
)
@click.option("--embd-type", type=click.Choice(ROW_TYPES), help="Type of embeddings and output.")
@click.option("--locality", type=float, help=LOCALITY)
@click.option("--shards", type=int, default=1, help="Files to split the model into.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="GGUF file.")
def main(preset: str, shards: int, force: bool, output: Path, **options: Any) -> None:
    """Write a model; options override the preset. Prints the files written, on stdout.

    Exit codes: 2 a shape that does not work, 9 no space or an existing file.
    """
    spec = replace(PRESETS[preset], **{k: v for k, v in options.items() if v is not None})
    try:
        size = total_bytes(spec)
        description = f"writing {output.name} ({size / 1e6:,.1f} MB, {spec.slices:,} expert slices)"
        with console.progress(description, size) as progress:
            for path in write_model(spec, output, shards=shards, force=force, progress=progress):
                print(path)
    except SwapmoeError as error:
        console.print_error(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
