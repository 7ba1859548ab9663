"""Finding and downloading a source archive through the user's Python package index settings."""

import ast
import errno
import os
import re
import ssl
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from swapmoe import archive, console, paths, run
from swapmoe.errors import UpstreamError

if TYPE_CHECKING:
    from unearth.fetchers import Fetcher, PyPIClient

ATTEMPTS = 3
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_PIP_ORDER = ("global", "install", "download", ":env:")


@dataclass(frozen=True)
class IndexSettings:
    """Where pip would look. An empty ``index_urls`` means that indexes are switched off."""

    index_urls: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None


def get_archive(name: str, sha256: str) -> Path:
    """The source archive ``name``, from the downloads folder or the index; its hash is checked.

    A broken download is resumed by the next call. Raises UpstreamError when it cannot be had.
    """
    target = paths.downloads_dir() / name
    with paths.lock(target):
        if not target.is_file():
            settings = read_settings()
            with open_session(settings) as session:
                download(session, find_link(session, settings, name), target, sha256)
        try:
            archive.check_hash(target, sha256)
        except UpstreamError:
            target.unlink()
            raise
    return target


def read_settings() -> IndexSettings:
    """pip's effective settings; where pip itself is missing, its environment variables."""
    listed = run.capture([sys.executable, "-m", "pip", "config", "list"], check=False)
    if listed.returncode == 0:
        values = parse_pip_config(listed.stdout)
    else:
        values = {
            key.removeprefix("PIP_").lower().replace("_", "-"): value
            for key, value in os.environ.items()
            if key.startswith("PIP_")
        }
    return make_settings(values)


def parse_pip_config(text: str) -> dict[str, str]:
    """Option values out of ``pip config list``; the environment wins over every section."""
    found: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([^.=]+)\.([^=]+)=(.*)", line)
        if not match or match[1] not in _PIP_ORDER:
            continue
        rank = _PIP_ORDER.index(match[1])
        if match[2] not in found or found[match[2]][0] <= rank:
            found[match[2]] = (rank, str(ast.literal_eval(match[3])))
    return {key: value for key, (_, value) in found.items()}


def make_settings(values: Mapping[str, str]) -> IndexSettings:
    """Index settings from pip option values; without an index-url the library's default."""
    indexes: list[str] = []
    if values.get("no-index", "").lower() not in ("1", "true", "yes", "on"):
        indexes = [values.get("index-url") or _default_index()]
        indexes += values.get("extra-index-url", "").split()
    links = values.get("find-links", "").split()
    return IndexSettings(
        index_urls=tuple(indexes),
        find_links=tuple(link for link in links if "://" in link or Path(link).exists()),
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        cert=values.get("cert") or None,
    )


def _default_index() -> str:
    from unearth import PackageFinder

    return PackageFinder().sources[0]["url"]


def open_session(settings: IndexSettings) -> "PyPIClient":
    """A client with the user's certificates, trusted hosts and credentials."""
    import httpx2
    from unearth.auth import MultiDomainBasicAuth
    from unearth.fetchers import PyPIClient

    session = PyPIClient(
        trusted_hosts=settings.trusted_hosts,
        verify=ssl.create_default_context(cafile=settings.cert) if settings.cert else True,
        timeout=httpx2.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS),
        follow_redirects=True,
    )
    session.auth = MultiDomainBasicAuth(index_urls=list(settings.index_urls))
    return session


def find_link(session: "PyPIClient", settings: IndexSettings, name: str) -> str:
    """The address of the archive ``<package>-<version>.tar.gz``. Raises UpstreamError."""
    import httpx2
    from unearth import PackageFinder

    package, _, version = name.removesuffix(".tar.gz").rpartition("-")
    reason = "not listed"
    if settings.index_urls or settings.find_links:
        finder = PackageFinder(
            cast("Fetcher", session),
            index_urls=settings.index_urls,
            find_links=settings.find_links,
            no_binary=[":all:"],
        )
        try:
            best = finder.find_best_match(f"{package}=={version}", allow_yanked=True).best
        except httpx2.HTTPError as error:
            best, reason = None, f"{type(error).__name__}: {error}"
        if best is not None:
            return best.link.normalized
    places = [*settings.index_urls, *settings.find_links]
    raise UpstreamError(
        f"source archive not found on the package index: {name}",
        evidence=[
            *(f"asked: {_without_secrets(place)}" for place in places),
            reason if places else "pip's settings switch every index off (no-index)",
        ],
        hint="check `pip config list` and the network, or use --source PATH",
    )


def download(
    session: "PyPIClient", url: str, target: Path, sha256: str, *, show: bool = True
) -> None:
    """Download ``url`` to ``target``, going on where an earlier try ended.

    The file appears under its name only when its hash is right; ``show`` draws a progress bar.
    Raises UpstreamError.
    """
    import httpx2

    part = target.with_name(target.name + ".part")
    failure = ""
    for attempt in range(ATTEMPTS):
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _fetch(session, url, part, target.name, show)
        except httpx2.HTTPError as error:
            failure = f"{type(error).__name__}: {error}"
            continue
        except OSError as error:
            if error.errno == errno.ENOSPC:
                part.unlink(missing_ok=True)
            raise
        try:
            archive.check_hash(part, sha256)
        except UpstreamError:
            part.unlink()
            if resumed and attempt + 1 < ATTEMPTS:
                continue
            raise
        part.replace(target)
        return
    raise UpstreamError(
        f"download failed: {target.name}",
        evidence=[f"from: {_without_secrets(url)}", failure],
        hint="run the same command again: it goes on where this one ended",
    )


def _fetch(session: "PyPIClient", url: str, part: Path, name: str, show: bool) -> None:
    done = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={done}-"} if done else {})}
    with session.get_stream(url, headers=headers) as response:
        if response.status_code == 416:
            return
        response.raise_for_status()
        if response.status_code != 206:
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        if (total or 0) > archive.MAX_BYTES:
            raise UpstreamError(f"refused: {name} has {total} bytes")
        bar = console.progress(name, total) if show else nullcontext(lambda _done: None)
        with part.open("ab" if done else "wb") as file, bar as advance:
            _copy(response.iter_raw(), file.write, advance, done)


def _copy(
    chunks: Iterable[bytes],
    write: Callable[[bytes], object],
    advance: Callable[[int], None],
    done: int,
) -> None:
    for chunk in chunks:
        done += len(chunk)
        if done > archive.MAX_BYTES:
            raise UpstreamError(f"refused: more than {archive.MAX_BYTES} bytes")
        write(chunk)
        advance(done)


def _without_secrets(place: str) -> str:
    parts = urlsplit(place)
    if not parts.hostname:
        return place
    port = f":{parts.port}" if parts.port else ""
    return parts._replace(netloc=parts.hostname + port, query="", fragment="").geturl()
