"""Reading a llama.cpp source archive: only ``llama.cpp/``, only ordinary files, bounded."""

import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from swapmoe.errors import UpstreamError

FOLDER = "llama.cpp"
MAX_MEMBERS = 50_000
MAX_BYTES = 2 << 30


def check_hash(file: Path, expected: str) -> None:
    """Raise UpstreamError unless the SHA-256 of ``file`` is ``expected``."""
    with file.open("rb") as data:
        actual = hashlib.file_digest(data, "sha256").hexdigest()
    if actual != expected:
        raise UpstreamError(
            f"not the recorded source archive: {file.name}",
            evidence=[f"file: {file}", f"sha256 {actual}", f"recorded {expected}"],
            hint="swapmoe fetch   # downloads it again",
        )


def unpack(file: Path, target: Path) -> int:
    """Unpack the files of ``<top>/llama.cpp/`` to ``target`` and return how many there were.

    Raises UpstreamError as ``read`` does.
    """
    taken = 0
    for name, executable, data in read(file):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if executable else 0o644)
        taken += 1
    return taken


def read(file: Path) -> Iterator[tuple[PurePosixPath, bool, bytes]]:
    """Path, executable bit and content of each file of ``<top>/llama.cpp/``.

    Raises UpstreamError for a path that leads out of the archive, for a link or device, for a
    name that occurs twice, beyond 50,000 members or 2 GiB, and for a damaged archive.
    """
    members = total = 0
    seen: set[PurePosixPath] = set()
    try:
        with tarfile.open(file, "r:gz") as tar:
            for member in tar:
                members += 1
                total += member.size
                if members > MAX_MEMBERS or total > MAX_BYTES:
                    limits = f"{MAX_MEMBERS} members, {MAX_BYTES} bytes"
                    raise _refused(file, member, f"the archive is larger than {limits}")
                path = _inner_path(file, member)
                if path is None or member.isdir():
                    continue
                if not member.isfile():
                    raise _refused(file, member, "links and devices are not accepted")
                if path in seen:
                    raise _refused(file, member, "the name occurs twice")
                seen.add(path)
                source = tar.extractfile(member)
                assert source is not None
                with source:
                    yield path, bool(member.mode & 0o111), source.read()
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UpstreamError(
            f"the source archive is damaged: {file.name}", evidence=[f"{file}: {error}"]
        ) from error
    if not seen:
        raise UpstreamError(
            f"no {FOLDER}/ folder in {file.name}", evidence=[f"{members} members in {file}"]
        )


def _inner_path(file: Path, member: tarfile.TarInfo) -> PurePosixPath | None:
    path = PurePosixPath(member.name)
    outside = path.is_absolute() or ".." in path.parts or "\\" in member.name or ":" in member.name
    if outside or "\0" in member.name:
        raise _refused(file, member, "the path leads out of the archive")
    parts = path.parts
    return PurePosixPath(*parts[2:]) if len(parts) > 2 and parts[1] == FOLDER else None


def _refused(file: Path, member: tarfile.TarInfo, reason: str) -> UpstreamError:
    return UpstreamError(
        f"the source archive is refused: {file.name}", evidence=[f"{member.name!r}: {reason}"]
    )
