"""The build receipt: what a folder of binaries was made from, and whether it still is."""

import hashlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from swapmoe import paths


@dataclass(frozen=True)
class File:
    """A file in the bin folder; size in bytes, mtime in nanoseconds."""

    sha256: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Receipt:
    """Everything that went into a build. `inputs` are compared; the rest is told."""

    key: str
    tag: str
    inputs: dict[str, str]
    bin_dir: Path
    targets: tuple[str, ...]
    tests: bool
    files: dict[str, File]
    version_line: str
    native: bool
    cpu_flags: tuple[str, ...]
    amx: str
    smoke: str
    seconds: float

    @property
    def tree_id(self) -> str:
        """Git tree id of the patched sources."""
        return self.inputs["tree id"]

    @property
    def binaries(self) -> dict[str, str]:
        """Name -> sha256 of each file in the bin folder."""
        return {name: file.sha256 for name, file in self.files.items()}

    def program(self, name: str) -> Path:
        """Where a built program lies."""
        return self.bin_dir / name

    def changed_files(self) -> list[str]:
        """Files of the build that are gone or are no longer the ones that were built."""
        return [name for name, file in self.files.items() if not _same(self.bin_dir / name, file)]


def _same(path: Path, file: File) -> bool:
    try:
        stat = path.stat()
        if (stat.st_size, stat.st_mtime_ns) == (file.size, file.mtime_ns):
            return True
        return stat.st_size == file.size and sha256_of(path) == file.sha256
    except OSError:
        return False


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def scan(bin_dir: Path) -> dict[str, File]:
    """Every regular file of a bin folder (libraries too; links are names of the same files)."""
    found: dict[str, File] = {}
    for path in sorted(bin_dir.iterdir()):
        if path.is_file() and not path.is_symlink():
            stat = path.stat()
            found[path.name] = File(sha256_of(path), stat.st_size, stat.st_mtime_ns)
    return found


def write(build: Path, receipt: Receipt) -> None:
    """Store the receipt beside its build folder, and name it the tag's latest when it can run."""
    paths.write_receipt(build, asdict(receipt) | {"bin_dir": str(receipt.bin_dir)})
    if receipt.inputs["sanitize"] == "none":
        paths.write_receipt(_latest(receipt.tag), {"key": receipt.key})


def read(key: str) -> Receipt | None:
    """The receipt of one build, or None when there is none or it is from another version."""
    data = paths.read_receipt(paths.build_dir(key))
    return _from_json(data) if data else None


def latest(tag: str) -> Receipt | None:
    """The receipt of the last build made for a pin."""
    pointer = paths.read_receipt(_latest(tag))
    key = pointer.get("key") if pointer else None
    return read(key) if isinstance(key, str) else None


def drop(build: Path) -> None:
    """Forget a build: from now on it counts as not made."""
    paths.receipt_path(build).unlink(missing_ok=True)


def _latest(tag: str) -> Path:
    return paths.build_dir(f"latest-{tag}")


def _from_json(data: dict[str, Any]) -> Receipt | None:
    if set(data) != {field.name for field in fields(Receipt)}:
        return None
    try:
        files = {name: File(**entry) for name, entry in data["files"].items()}
    except (AttributeError, TypeError):
        return None
    return Receipt(
        **data
        | {
            "files": files,
            "bin_dir": Path(data["bin_dir"]),
            "targets": tuple(data["targets"]),
            "cpu_flags": tuple(data["cpu_flags"]),
        }
    )
