"""Is it a GGUF file at all, and if not, what is it?"""

from swapmoe.errors import ModelError
from swapmoe.gguf_cursor import HINT_REPLACE, Cursor

MAGIC = b"GGUF"


def check_magic(cursor: Cursor) -> None:
    """Step over the magic. Raises `ModelError` that says what the file is instead."""
    path = cursor.path
    if cursor.size == 0:
        raise ModelError(
            f"{path.name} is empty", evidence=[f"file: {path}"], hint="fetch the file again"
        )
    start = cursor.stream.read(512)
    cursor.stream.seek(0)
    if start.startswith(MAGIC):
        cursor.take(len(MAGIC), "the magic")
        return
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    what, hint = "does not start with the GGUF magic", "give a GGUF model file"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        what, hint = (
            "is a web page, not a model",
            "the download link gave a page; fetch the file itself",
        )
    elif text.startswith(b"version https://git-lfs"):
        what, hint = "is a Git LFS pointer, not the model", "run `git lfs pull` where it came from"
    elif text.startswith((b"ggjt", b"tjgg", b"lmgg", b"ggml", b"fmgg", b"ggmf")):
        what, hint = "is a model in a format older than GGUF", HINT_REPLACE
    raise ModelError(
        f"{path.name} {what}",
        evidence=[f"file: {path}", f"it starts with {start[:16]!r}"],
        hint=hint,
    )


def bad_version(cursor: Cursor, version: int) -> ModelError:
    """The error for a version that cannot be read."""
    if version and version & 0xFFFF == 0:
        what = "is a big-endian GGUF"
    elif version == 1:
        what = "is GGUF version 1, which llama.cpp no longer reads"
    else:
        what = f"has GGUF version {version}; versions 2 and 3 are supported"
    return ModelError(
        f"{cursor.path.name} {what}", evidence=[f"file: {cursor.path}"], hint=HINT_REPLACE
    )
