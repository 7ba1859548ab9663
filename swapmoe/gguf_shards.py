"""The files of one model: all shards from any of them, and whether their data is all there."""

import re
from pathlib import Path

from swapmoe.errors import ModelError
from swapmoe.gguf_header import Header, read_header
from swapmoe.gguf_magic import MAGIC

SHARD_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
RAW_PART = re.compile(r".+(\.gguf[-.]split-[a-z]+|\.gguf\.part\d+of\d+|\.gguf\.\d{2,5})", re.DOTALL)
"""Names of parts that are cut anywhere, and have to be joined before use."""
HEADER_ONLY_SHARE = 0.05
"""A file with less than this share of its data is taken for a header alone, not a cut download."""


def all_shards(path: Path) -> list[Header]:
    """The headers of all shards, found from any of them.

    Raises `ModelError` for what is missing, unsound, or not of one model.
    """
    given = read_header(path)
    count = given.integer("split.count") or 0
    if count <= 1:
        return [given]
    _refuse_joined(given, count)
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


def _refuse_joined(header: Header, count: int) -> None:
    """Another GGUF after the last tensor: shards that somebody joined end to end."""
    end = -(-header.data_end // header.alignment) * header.alignment
    for start in dict.fromkeys((header.data_end, end)):
        if header.file_bytes < start + len(MAGIC):
            return
        with header.path.open("rb") as file:
            file.seek(start)
            if file.read(len(MAGIC)) != MAGIC:
                continue
        raise ModelError(
            f"{header.path.name} is several shards joined end to end, which llama.cpp cannot load",
            evidence=[
                f"shard {(header.integer('split.no') or 0) + 1} of {count} ends at byte "
                f"{header.data_end:,}, the next header follows; the file has "
                f"{header.file_bytes:,} bytes"
            ],
            hint=f"keep the shards apart, named NAME-00001-of-{count:05}.gguf and so on, or merge "
            "them with llama-gguf-split --merge",
        )


def missing(header: Header, *, header_only: bool = False) -> int:
    """Bytes of tensor data that the file lacks: 0 unless it is a header alone and may be.

    Raises `ModelError`, naming tensor and file, for a file that is cut off.
    """
    lacking = header.data_end - header.file_bytes
    if lacking <= 0:
        return 0
    data = header.data_end - header.data_start
    if header_only and data - lacking < HEADER_ONLY_SHARE * data:
        return min(lacking, data)
    first = min(
        (t for t in header.tensors if t.offset + t.nbytes > header.file_bytes),
        key=lambda tensor: tensor.offset,
    )
    last = max(header.tensors, key=lambda tensor: tensor.offset + tensor.nbytes)
    raw = RAW_PART.fullmatch(header.path.name)
    raise ModelError(
        f"{header.path.name} is cut off: tensor {last.name} ends {lacking:,} bytes "
        "after the end of the file",
        evidence=[
            f"file: {header.path}",
            f"size {header.file_bytes:,} bytes, needed {header.data_end:,}",
            *([f"the first tensor that is not whole: {first.name}"] if first is not last else []),
        ],
        hint="it is a part of a file: join all parts in order, cat PARTS > MODEL.gguf"
        if raw
        else "the download did not finish; fetch the file again",
    )
