"""Addresses that are taken, free, chosen, or impossible."""

import os
import socket
from pathlib import Path

import psutil
import pytest

from swapmoe import ports
from swapmoe.errors import LaunchError
from swapmoe.health import Endpoint


def listening(host: str = "127.0.0.1") -> socket.socket:
    found = socket.socket()
    found.bind((host, 0))
    found.listen(1)
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_refused_with_its_owner(host: str) -> None:
    with listening() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port} on {host} is in use") as caught:
            ports.check_free(Endpoint(host, port))
    assert caught.value.evidence[0].startswith(f"by process {os.getpid()} (")
    assert "--port 0" in caught.value.hint
    ports.check_free(Endpoint(host, port))


def test_an_owner_that_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_kind: str) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", refuse)
    assert "another user" in ports.owner(Endpoint("127.0.0.1", 1))


def test_a_chosen_port_is_free() -> None:
    port = ports.choose("127.0.0.1")
    assert port > 0
    ports.check_free(Endpoint("127.0.0.1", port))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "a" * 70])
def test_an_address_of_another_machine(host: str) -> None:
    with pytest.raises(LaunchError) as caught:
        ports.choose(host)
    assert host in caught.value.message
    assert "--host 127.0.0.1" in caught.value.hint


def test_a_socket_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # such a path may be short only
    where = Endpoint("x.sock", 0)
    ports.check_free(where)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("x.sock")
        server.listen(1)
        with pytest.raises(LaunchError, match=r"listens on x\.sock already"):
            ports.check_free(where)
    with pytest.raises(LaunchError, match="left behind") as caught:
        ports.check_free(where)
    assert caught.value.hint == "rm x.sock"
    ports.remove_socket_file(where)
    assert not Path("x.sock").exists()
    Path("x.sock").write_text("precious")
    with pytest.raises(LaunchError, match="not a socket"):
        ports.check_free(where)
    ports.remove_socket_file(where)
    assert Path("x.sock").read_text() == "precious"


@pytest.mark.parametrize(
    ("where", "url"),
    [
        (Endpoint("0.0.0.0", 80), "http://127.0.0.1:80"),
        (Endpoint("::", 80, "/api"), "http://[::1]:80/api"),
        (Endpoint("a b.sock", 80), "unix://a b.sock"),
    ],
)
def test_addresses_for_clients(where: Endpoint, url: str) -> None:
    assert where.url == url
