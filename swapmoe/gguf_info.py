"""Facts about a model, from the headers of all its shards; nothing but headers is read."""

import re
from dataclasses import dataclass
from pathlib import Path

from swapmoe.errors import ModelError
from swapmoe.gguf_header import Header, read_header

ROUTED = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.weight")
"""The one pattern that says which tensors hold routed experts (the engine has the same one)."""

EXPERT_LIKE = re.compile(r"blk\.\d+\.ffn_(gate|up|down|gate_up)_chexps\.weight")
OLD_LAYOUT = re.compile(r"blk\.\d+\.ffn_(gate|up|down)\.\d+\.weight")
SHARD_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


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
    """Header facts of a whole model. `path` is the first shard, the one to give to llama.cpp."""

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

    @property
    def slices(self) -> int:
        """Routed slices, as the engine counts them: one per expert and tensor."""
        return sum(tensor.slices for tensor in self.routed)

    @property
    def slices_without_nextn(self) -> int:
        """Slices without those of the last blocks, which predict the tokens after the next.

        llama.cpp leaves those blocks out unless it speculates with them.
        """
        end = self.block_count - self.nextn_layers
        return sum(tensor.slices for tensor in self.routed if tensor.layer < end)

    def bytes_per_token(self, used: int) -> int:
        """Bytes of routed experts for one token with `used` experts per layer (engine's rule)."""
        return sum(used * tensor.slice_bytes for tensor in self.routed)

    @property
    def routed_bytes(self) -> int:
        """Bytes held by routed experts."""
        return sum(tensor.slices * tensor.slice_bytes for tensor in self.routed)


def inspect(path: Path) -> ModelFacts:
    """Read the headers of every shard. Raises `ModelError` when one is missing or unsound."""
    headers = _all_shards(path)
    for header in headers:
        _check_complete(header)
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
        block_count=first.integer(f"{architecture}.block_count") or 0,
        context_length=first.integer(f"{architecture}.context_length") or 0,
        expert_count=first.integer(f"{architecture}.expert_count") or 0,
        expert_used_count=first.integer(f"{architecture}.expert_used_count") or 0,
        nextn_layers=first.integer(f"{architecture}.nextn_predict_layers") or 0,
        routed=tuple(routed),
        expert_like=tuple(t.name for _, t in tensors if EXPERT_LIKE.fullmatch(t.name)),
        old_layout=next((t.name for _, t in tensors if OLD_LAYOUT.fullmatch(t.name)), ""),
    )


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


def _all_shards(path: Path) -> list[Header]:
    given = read_header(path)
    count = given.integer("split.count") or 0
    if count <= 1:
        return [given]
    match = SHARD_NAME.fullmatch(path.name)
    number = given.integer("split.no")
    if match is None or int(match["count"]) != count or number != int(match["number"]) - 1:
        raise ModelError(
            f"{path.name} says it is shard {(number or 0) + 1} of {count}, but its name does not",
            evidence=[f"file: {path}"],
            hint=f"rename the shards to NAME-00001-of-{count:05}.gguf and so on",
        )
    prefix = match["prefix"]
    paths = [path.with_name(f"{prefix}-{n + 1:05}-of-{count:05}.gguf") for n in range(count)]
    missing = [shard.name for shard in paths if not shard.is_file()]
    if missing:
        raise ModelError(
            f"{len(missing)} of {count} shards missing: {', '.join(missing[:8])}"
            + (" ..." if len(missing) > 8 else ""),
            evidence=[f"folder: {path.parent}"],
            hint="download the missing shards into that folder",
        )
    headers = [given if shard == path else read_header(shard) for shard in paths]
    for index, header in enumerate(headers):
        said = (header.integer("split.no"), header.integer("split.count"))
        if said != (index, count):
            raise ModelError(
                f"{header.path.name} is not shard {index + 1} of {count}",
                evidence=[f"split.no, split.count = {said}, expected {(index, count)}"],
                hint="the shards come from different models or downloads; fetch them again",
            )
    total = headers[0].integer("split.tensors.count")
    found = sum(len(header.tensors) for header in headers)
    if total is not None and total != found:
        raise ModelError(
            f"the shards of {path.name} hold {found:,} tensors, the first one promises {total:,}",
            hint="the shards come from different models or downloads; fetch them again",
        )
    return headers


def _check_complete(header: Header) -> None:
    last = max(header.tensors, key=lambda tensor: tensor.offset + tensor.nbytes, default=None)
    if last is None or last.offset + last.nbytes <= header.file_bytes:
        return
    end = last.offset + last.nbytes
    raise ModelError(
        f"{header.path.name} is cut off: tensor {last.name} ends {end - header.file_bytes:,} bytes "
        "after the end of the file",
        evidence=[
            f"file: {header.path}",
            f"size {header.file_bytes:,} bytes, needed {end:,}",
        ],
        hint="the download did not finish; fetch the file again",
    )
