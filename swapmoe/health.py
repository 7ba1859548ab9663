"""Asks a server started here whether its model is loaded."""

import contextlib
import http.client
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swapmoe.config import ServeSettings
from swapmoe.flags import Given

TIMEOUT_SECONDS = 1.0
MOST_BYTES = 1 << 20
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean "listen everywhere" -> where to reach such a server from here."""


class _SocketFile(http.client.HTTPConnection):
    """HTTP over a socket file."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Open the connection. Raises `OSError`."""
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("this system has no socket files")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_SECONDS)
        self.sock.connect(self._path)


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens; `prefix` comes before every path."""

    host: str
    port: int
    prefix: str = ""

    @property
    def is_socket_file(self) -> bool:
        """Whether `host` is the path of a socket file (llama-server's rule)."""
        return self.host.endswith(".sock")

    @property
    def url(self) -> str:
        """The address for clients on this machine."""
        if self.is_socket_file:
            return f"unix://{self.host}"
        host = _ANY.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}{self.prefix}"


def endpoint(
    settings: ServeSettings, given: Sequence[Given] = (), env: Mapping[str, str] | None = None
) -> Endpoint:
    """Where the server will listen, with what extra arguments and variables add."""
    env = env or {}
    options = {option.name: option.value for option in given}
    prefix = options.get("--api-prefix") or env.get("LLAMA_ARG_API_PREFIX") or ""
    return Endpoint(settings.host, settings.port, prefix)


def is_ready(where: Endpoint) -> bool:
    """Whether the server answers that its model is loaded; False when it cannot be reached."""
    return _get(where, "/health", most=0) is not None


def metrics(where: Endpoint) -> dict[str, float] | None:
    """The numbers of /metrics without the prefix `llamacpp:`; None when they cannot be had."""
    text = _get(where, "/metrics", most=MOST_BYTES)
    if text is None:
        return None
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        with contextlib.suppress(ValueError):
            found[name.removeprefix("llamacpp:")] = float(value)
    return found


def _get(where: Endpoint, path: str, *, most: int) -> str | None:
    """The text of an answer of status 200, `most` bytes of it; None for any other, or for none."""
    host = _ANY.get(where.host, where.host)
    if where.is_socket_file:
        connection: http.client.HTTPConnection = _SocketFile(where.host)
    else:
        connection = http.client.HTTPConnection(host, where.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"{where.prefix}{path}")
        answer = connection.getresponse()
        return answer.read(most).decode(errors="replace") if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
