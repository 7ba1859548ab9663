"""A patch series on disk: overlay files, patches in order, their mail headers and digests."""

import email
import email.policy
import hashlib
import re
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import parseaddr
from functools import cached_property
from pathlib import Path, PurePosixPath

from swapmoe import diffs
from swapmoe.errors import SeriesError

SERIES = "series"
OVERLAY = "overlay"
_POINTER = re.compile(r"\.\./(?:[A-Za-z0-9][A-Za-z0-9.-]*/)?overlay")
_TRAILER = re.compile(r"([A-Za-z][A-Za-z-]*): *(.*)")


@dataclass(frozen=True)
class OverlayFile:
    """A new file of the patched tree; ``path`` is its place there."""

    path: str
    source: Path
    data: bytes

    @property
    def sha256(self) -> str:
        """Hash of the bytes on disk."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Patch:
    """One patch, a mail as ``git am`` reads it, with LF line endings."""

    name: str
    data: bytes
    had_crlf: bool = False

    @property
    def sha256(self) -> str:
        """Hash of the patch with LF line endings."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def _mail(self) -> EmailMessage:
        _, _, mail = (
            self.data.partition(b"\n") if self.data.startswith(b"From ") else ("", "", self.data)
        )
        message = email.message_from_bytes(mail, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        return message

    @cached_property
    def _parts(self) -> tuple[str, str]:
        """Message body and diff: the body ends at ``---`` or at the first diff header."""
        payload = self._mail.get_payload(decode=True)
        text = payload.decode("utf-8", "replace") if isinstance(payload, bytes) else ""
        end = re.search(r"(?m)^(?:---$|diff -)", text)
        diff = re.search(r"(?m)^diff --git ", text)
        return text[: end.start()] if end else text, text[diff.start() :] if diff else ""

    @property
    def author(self) -> tuple[str, str]:
        """Name and address of the author; empty when the header is missing."""
        return parseaddr(str(self._mail.get("From", "")))

    @property
    def date(self) -> str:
        """The Date header."""
        return str(self._mail.get("Date", ""))

    @property
    def subject(self) -> str:
        """The subject without ``[PATCH]``."""
        folded = str(self._mail.get("Subject", ""))
        return re.sub(r"^(\[[^]]*\]\s*)+", "", " ".join(folded.split()))

    @property
    def body(self) -> str:
        """The message below the subject, trailers included."""
        return self._parts[0].strip()

    @property
    def message(self) -> str:
        """The commit message."""
        return f"{self.subject}\n\n{self.body}\n" if self.body else f"{self.subject}\n"

    @cached_property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """Key and value of each trailer in the last paragraph; continuation lines are joined."""
        found: list[tuple[str, str]] = []
        for line in self.body.split("\n\n")[-1].splitlines():
            match = _TRAILER.fullmatch(line)
            if match:
                found.append((match[1], match[2].strip()))
            elif line[:1].isspace() and found:
                key, value = found.pop()
                found.append((key, f"{value} {line.strip()}"))
            else:
                return ()
        return tuple(found)

    def trailer(self, key: str) -> list[str]:
        """All values of one trailer."""
        return [value for name, value in self.trailers if name == key]

    @property
    def diff(self) -> str:
        """The diff part."""
        return self._parts[1]

    @cached_property
    def raw_diff(self) -> bytes:
        """The diff part, byte for byte."""
        start = re.search(rb"(?m)^diff --git ", self.data)
        return self.data[start.start() :] if start else b""

    @cached_property
    def changes(self) -> tuple[diffs.FileChange, ...]:
        """The touched files. Raises SeriesError naming the patch for a diff not understood."""
        try:
            return diffs.parse(self.raw_diff.decode("utf-8", "surrogateescape"))
        except SeriesError as error:
            raise SeriesError(f"{self.name}: {error.message}", evidence=error.evidence) from error


@dataclass(frozen=True)
class Series:
    """Overlay files sorted by path and patches in the order of the ``series`` file."""

    folder: Path
    overlay: tuple[OverlayFile, ...]
    patches: tuple[Patch, ...]

    @cached_property
    def digest(self) -> str:
        """One hash over names and bytes, in order."""
        total = hashlib.sha256()
        for name, data in [
            *((f"{OVERLAY}/{file.path}", file.data) for file in self.overlay),
            *((patch.name, patch.data) for patch in self.patches),
        ]:
            total.update(f"{name}\0{len(data)}\0".encode())
            total.update(data)
        return f"sha256:{total.hexdigest()}"

    def patches_of(self, path: str) -> tuple[str, ...]:
        """Names of the patches that touch ``path``."""
        return tuple(
            patch.name
            for patch in self.patches
            if any(path in (change.path, change.old_path) for change in patch.changes)
        )


def read_names(folder: Path) -> list[str]:
    """The entries of the ``series`` file. Raises SeriesError when it cannot be read."""
    try:
        text = (folder / SERIES).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SeriesError(f"cannot read {folder / SERIES}", evidence=[str(error)]) from error
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def read_patch(file: Path) -> Patch:
    """Read one patch; CRLF line endings are undone and remembered. Raises SeriesError."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SeriesError(
            f"patch cannot be read: {file.name}",
            evidence=[f"{file}: {error.strerror}", f"listed in {file.parent / SERIES}"],
            hint="swapmoe patch lint",
        ) from error
    converted = re.search(rb"(?m)^diff --git .*\r$", data) is not None
    return Patch(file.name, data.replace(b"\r\n", b"\n") if converted else data, converted)


def overlay_dir(folder: Path) -> Path:
    """Where the series in ``folder`` has its overlay: there, or where its ``overlay`` file says.

    A file ``overlay`` with the one line ``../<tag>/overlay`` (or ``../overlay``) shares the
    overlay of another pin. Raises SeriesError for any other content.
    """
    own = folder / OVERLAY
    if not own.is_file() or own.is_symlink():
        return own
    text = own.read_text(encoding="utf-8", errors="replace").strip()
    shared = folder / text
    usable = _POINTER.fullmatch(text) and shared.is_dir()
    if not usable or any(path.is_symlink() for path in (shared, shared.parent)):
        raise SeriesError(
            f"{own} does not name an overlay folder",
            evidence=[repr(text)],
            hint="write ../<tag>/overlay, the overlay folder of another pin",
        )
    return shared


def read_overlay(folder: Path) -> tuple[OverlayFile, ...]:
    """All files of the overlay, sorted by path. Raises SeriesError for a link."""
    top = overlay_dir(folder)
    files = sorted(
        (PurePosixPath(file.relative_to(top)).as_posix(), file)
        for file in top.rglob("*")
        if file.is_symlink() or file.is_file()
    )
    links = [path for path, file in files if file.is_symlink()]
    if links:
        raise SeriesError("overlay holds links", evidence=links, hint="use ordinary files")
    return tuple(OverlayFile(path, file, file.read_bytes()) for path, file in files)


def read(folder: Path) -> Series:
    """Read a whole series. Raises SeriesError when a listed patch is missing."""
    names = read_names(folder)
    return Series(folder, read_overlay(folder), tuple(read_patch(folder / name) for name in names))
