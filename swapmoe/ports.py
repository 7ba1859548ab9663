"""Is the address of a server free, who has it, and which port is free."""

import errno
import os
import socket
import stat
import sys
from pathlib import Path

import psutil

from swapmoe.errors import LaunchError
from swapmoe.health import Endpoint

_ALL = ("0.0.0.0", "::")


def choose(host: str) -> int:
    """A TCP port that is free on this host now. Raises `LaunchError` when there is none."""
    return _bind(Endpoint(host, 0))


def check_free(where: Endpoint) -> None:
    """Raises `LaunchError` with the owner when a server could not listen there."""
    if where.is_socket_file:
        _check_socket_file(Path(where.host))
    else:
        _bind(where)


def remove_socket_file(where: Endpoint) -> None:
    """Remove the socket file of a server that has ended; llama-server leaves it behind."""
    path = Path(where.host)
    if where.is_socket_file and path.is_socket():
        path.unlink(missing_ok=True)


def _bind(where: Endpoint) -> int:
    try:
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise LaunchError(
            f"{where.host} is not an address of this machine",
            evidence=[str(error)],
            hint="give --host 127.0.0.1 for this machine only, or 0.0.0.0 for the network",
        ) from None
    family, kind, protocol, _, address = found[0]
    try:
        with socket.socket(family, kind, protocol) as probe:
            if sys.platform == "win32":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            else:  # as the server does: old connections that linger do not count
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
            port: int = probe.getsockname()[1]
            return port
    except OSError as error:
        raise _refusal(where, error) from None


def _refusal(where: Endpoint, error: OSError) -> LaunchError:
    if error.errno == errno.EADDRINUSE:
        return LaunchError(
            f"port {where.port} on {where.host} is in use",
            evidence=[f"by {owner(where)}"],
            hint="give another one with --port, or --port 0 for any that is free",
        )
    if error.errno == errno.EACCES:
        hint = "ports below 1024 usually belong to root; give a higher one with --port"
    else:
        hint = "give --host 127.0.0.1 for this machine only, or 0.0.0.0 for the network"
    return LaunchError(
        f"cannot listen on {where.host}, port {where.port}",
        evidence=[error.strerror or str(error)],
        hint=hint,
    )


def owner(where: Endpoint) -> str:
    """The process that listens on a TCP port, in words."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.AccessDenied, OSError):
        connections = []
    for found in connections:
        if found.status == psutil.CONN_LISTEN and found.laddr and found.pid:
            ip, port = found.laddr
            everywhere = ip in _ALL or where.host in _ALL
            if port == where.port and (everywhere or where.host in (ip, "localhost")):
                return _describe(found.pid)
    return "a process of another user, or one that cannot be seen from here"


def _describe(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"process {pid} ({process.name()}) of {process.username()}"
    except psutil.Error:
        return f"process {pid}"


def _check_socket_file(path: Path) -> None:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise LaunchError(f"{path} exists and is not a socket", hint="give another --host")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            raise LaunchError(
                f"{path} was left behind by a server that is gone", hint=f"rm {path}"
            ) from None
    raise LaunchError(f"a server listens on {path} already", hint="give another --host")
