"""Bounded reading of one untrusted file: every length is checked against what is left of it."""

import struct
from pathlib import Path
from typing import BinaryIO

from swapmoe.errors import ModelError

MAX_KEPT_BYTES = 32 * 1024 * 1024
"""Text of one header that is kept in memory: names and short values."""
CHUNK_BYTES = 1 << 20

HINT_REPLACE = "download the file again, or ask its publisher for a current GGUF"


class Cursor:
    """Reads little-endian values and refuses to pass the end of the file."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self.path = path
        self.stream = stream
        self.size = size
        self.at = 0
        self._kept = 0

    def broken(self, what: str) -> ModelError:
        """The error for a header that contradicts itself here."""
        return ModelError(
            f"the header of {self.path.name} is damaged: {what}",
            evidence=[f"file: {self.path}", f"at byte {self.at:,} of {self.size:,}"],
            hint=HINT_REPLACE,
        )

    def need(self, count: int, what: str) -> None:
        """Raise `ModelError` when fewer than `count` bytes are left."""
        if count > self.size - self.at:
            raise ModelError(
                f"{self.path.name} is cut off inside its header, at {what}",
                evidence=[
                    f"file: {self.path}",
                    f"{count:,} bytes wanted at byte {self.at:,}, the file has {self.size:,}",
                ],
                hint="the download did not finish; fetch the file again",
            )

    def take(self, count: int, what: str) -> bytes:
        """Read `count` bytes."""
        self.need(count, what)
        data = self.stream.read(count)
        if len(data) != count:
            raise self.broken(f"short read at {what}")
        self.at += count
        return data

    def skip(self, count: int, what: str) -> None:
        """Step over `count` bytes."""
        self.need(count, what)
        self.stream.seek(count, 1)
        self.at += count

    def number(self, layout: str, what: str) -> int:
        """Read one number of a `struct` layout."""
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout), what))[0]
        return value

    def text(self, limit: int, what: str) -> str:
        """Read a length and that many bytes of text."""
        length = self.number("<Q", f"the length of {what}")
        if length > limit:
            raise self.broken(f"{what} claims {length:,} bytes (limit {limit:,})")
        return self.keep(length, what)

    def keep(self, length: int, what: str) -> str:
        """Read `length` bytes of text; how much a header may keep is bounded in all."""
        self._kept += length
        if self._kept > MAX_KEPT_BYTES:
            raise self.broken(f"names and short values take more than {MAX_KEPT_BYTES:,} bytes")
        return self.take(length, what).decode("utf-8", errors="replace")

    def skip_texts(self, count: int, what: str) -> None:
        """Step over `count` texts, a chunk of the file at a time."""
        chunk, at = b"", 0
        for _ in range(count):
            if at + 8 > len(chunk):
                self._move(at - len(chunk), what)
                chunk, at = self._peek(), 0
                self._check(len(chunk) >= 8, 8, what)
            at += 8 + int.from_bytes(chunk[at : at + 8], "little")
            if at > len(chunk):
                self._check(at - len(chunk) <= self.size - self.at, at - len(chunk), what)
                self._move(at - len(chunk), what)
                chunk, at = b"", 0
        self._move(at - len(chunk), what)

    def _peek(self) -> bytes:
        """Read a chunk, or what is left of the file."""
        return self.take(min(CHUNK_BYTES, self.size - self.at), "a chunk")

    def _move(self, by: int, what: str) -> None:
        if by < 0:
            self.stream.seek(by, 1)
            self.at += by
        elif by:
            self.skip(by, what)

    def _check(self, good: bool, count: int, what: str) -> None:
        if not good:
            self.need(max(count, self.size - self.at + 1), what)
