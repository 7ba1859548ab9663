"""Facts about a model, from the headers of all its shards; nothing but headers is read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swapmoe.errors import ModelError
from swapmoe.gguf_cursor import HINT_REPLACE
from swapmoe.gguf_header import Header, Numbers, Scalar, Tensor
from swapmoe.gguf_shards import all_shards, missing

ROUTED = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.weight")
"""The one pattern that says which tensors hold routed experts (the engine has the same one)."""

EXPERT_LIKE = re.compile(r"blk\.\d+\.ffn_(gate|up|down|gate_up)_chexps\.weight")
MAX_LAYERS = 4_096
"""llama.cpp itself takes at most 512."""
OLD_LAYOUT = re.compile(r"blk\.\d+\.ffn_(gate|up|down)\.\d+\.weight")


@dataclass(frozen=True)
class RoutedTensor:
    """A tensor of routed experts: `slices` experts of `slice_bytes` bytes each."""

    name: str
    shard: Path
    type_name: str
    layer: int
    slices: int
    slice_bytes: int


@dataclass(frozen=True)
class ModelFacts:
    """Header facts of a whole model. `path` is the first shard, the one to give to llama.cpp.

    `tensors` are those of all shards, `metadata` and `arrays` the first shard's. `missing_bytes` is
    what the files lack of their tensors' data: not 0 only for headers without their data.
    """

    path: Path
    shards: tuple[Path, ...]
    file_bytes: int
    tensor_bytes: int
    tensor_count: int
    architecture: str
    name: str
    block_count: int
    context_length: int
    expert_count: int
    expert_used_count: int
    nextn_layers: int
    routed: tuple[RoutedTensor, ...]
    expert_like: tuple[str, ...]
    old_layout: str
    metadata: Mapping[str, Scalar]
    arrays: Mapping[str, Numbers]
    tensors: tuple[Tensor, ...]
    missing_bytes: int

    def integer(self, name: str, default: int = 0) -> int:
        """The architecture's integer key `name`, or `default`."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def array(self, name: str) -> tuple[int, ...]:
        """The architecture's array of integers `name`; empty when absent."""
        values = self.arrays.get(f"{self.architecture}.{name}", ())
        return tuple(int(value) for value in values if not isinstance(value, float))

    @property
    def trunk_layers(self) -> int:
        """Layers that each token passes: those that predict further tokens are not among them."""
        return max(0, self.block_count - self.nextn_layers)

    @property
    def slices(self) -> int:
        """Routed slices, as the engine counts them: one per expert and tensor."""
        return sum(tensor.slices for tensor in self.routed)

    @property
    def slices_without_nextn(self) -> int:
        """Slices without those of the last blocks, which predict the tokens after the next.

        llama.cpp leaves those blocks out unless it speculates with them.
        """
        return sum(tensor.slices for tensor in self.routed if tensor.layer < self.trunk_layers)

    def bytes_per_token(self, used: int) -> int:
        """Bytes of routed experts for one token with `used` experts per layer (engine's rule)."""
        return sum(used * tensor.slice_bytes for tensor in self.routed)

    @property
    def routed_bytes(self) -> int:
        """Bytes held by routed experts."""
        return sum(tensor.slices * tensor.slice_bytes for tensor in self.routed)


def inspect(path: Path, *, header_only: bool = False) -> ModelFacts:
    """Read the headers of every shard. Raises `ModelError` when one is missing or unsound.

    `header_only` allows files that hold next to nothing but their header.
    """
    headers = all_shards(path)
    missing_bytes = sum(missing(header, header_only=header_only) for header in headers)
    first = headers[0]
    architecture = first.text("general.architecture")
    tensors = [(header.path, tensor) for header in headers for tensor in header.tensors]
    routed: list[RoutedTensor] = []
    for shard, tensor in tensors:
        match = ROUTED.fullmatch(tensor.name)
        if match is None:
            continue
        slices = tensor.dims[2] if len(tensor.dims) > 2 else 1
        if slices == 0 or tensor.nbytes % slices:
            raise ModelError(
                f"{shard.name}: the shape {tensor.dims} of {tensor.name} cannot hold experts",
                evidence=[f"file: {shard}"],
            )
        routed.append(
            RoutedTensor(
                tensor.name,
                shard,
                tensor.type_name,
                int(match[1]),
                slices,
                tensor.nbytes // slices,
            )
        )
    return ModelFacts(
        path=first.path,
        shards=tuple(header.path for header in headers),
        file_bytes=sum(header.file_bytes for header in headers),
        tensor_bytes=sum(tensor.nbytes for _, tensor in tensors),
        tensor_count=len(tensors),
        architecture=architecture,
        name=first.text("general.name"),
        block_count=_count(first, "block_count", MAX_LAYERS),
        context_length=_count(first, "context_length"),
        expert_count=(experts := _count(first, "expert_count")),
        expert_used_count=_count(first, "expert_used_count", most=experts),
        nextn_layers=_count(first, "nextn_predict_layers"),
        routed=tuple(routed),
        expert_like=tuple(t.name for _, t in tensors if EXPERT_LIKE.fullmatch(t.name)),
        old_layout=next((t.name for _, t in tensors if OLD_LAYOUT.fullmatch(t.name)), ""),
        metadata=first.metadata,
        arrays=first.arrays,
        tensors=tuple(tensor for _, tensor in tensors),
        missing_bytes=missing_bytes,
    )


def _count(header: Header, name: str, most: int = 2**31 - 1) -> int:
    """One of the architecture's counts; 0 when absent. Raises `ModelError` for an absurd one."""
    key = f"{header.text('general.architecture')}.{name}"
    value = header.integer(key) or 0
    if not 0 <= value <= most:
        raise ModelError(
            f"the header of {header.path.name} is damaged: {key} is {value:,}",
            evidence=[f"file: {header.path}", f"at most {most:,} can be"],
            hint=HINT_REPLACE,
        )
    return value


def require_streamable(facts: ModelFacts) -> None:
    """Raises `ModelError` when the model has nothing that expert streaming could stream."""
    if facts.routed:
        return
    if facts.old_layout:
        raise ModelError(
            f"{facts.path.name} is in the pre-2024 expert layout, one tensor per expert",
            evidence=[
                f"it has {facts.old_layout} instead of merged ffn_*_exps tensors",
                "the file is whole, but current llama.cpp no longer loads this layout",
            ],
            hint="replace it with a GGUF of the same model converted since April 2024",
        )
    raise ModelError(
        f"{facts.path.name} has no routed experts, so there is nothing to stream",
        evidence=[
            f"architecture {facts.architecture or 'unknown'}, {facts.tensor_count:,} tensors, "
            "none named blk.<n>.ffn_{gate,up,down,gate_up}_exps.weight",
        ],
        hint="give a Mixture-of-Experts model; a dense model runs under plain llama-cli",
    )
