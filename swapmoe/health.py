"""Asks a server started here whether its model is loaded."""

import http.client
import socket

from swapmoe.config import ServeSettings

TIMEOUT_SECONDS = 1.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean "listen everywhere" -> where to reach such a server from here."""


class _SocketFile(http.client.HTTPConnection):
    """HTTP over a socket file."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Open the connection."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_SECONDS)
        self.sock.connect(self._path)


def is_ready(settings: ServeSettings) -> bool:
    """Whether the server answers that its model is loaded; False when it cannot be reached."""
    host = _ANY.get(settings.host, settings.host)
    if host.endswith(".sock"):
        connection: http.client.HTTPConnection = _SocketFile(host)
    else:
        connection = http.client.HTTPConnection(host, settings.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
