"""`swapmoe serve` in a process of its own, and a plain client for it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

START_SECONDS = 300.0
REQUEST_SECONDS = 300.0
STOP_SECONDS = 30.0

_BUFFER = re.compile(r"\s(CPU\w*)\s+(?:model|KV|RS|compute|output) buffer size =\s*([\d.]+) MiB")


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Server:
    """A server that is ready; its log grows in a file."""

    wrapper: "subprocess.Popen[bytes]"
    port: int
    log: Path

    def ask(self, path: str, body: object = None, timeout: float = REQUEST_SECONDS) -> str:
        """The text of an answer; raises urllib's error for a status other than 200."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text: str = answer.read().decode()
            return text

    def complete(self, prompt: str, n: int) -> dict[str, Any]:
        """A greedy completion of exactly `n` tokens, with the server's own figures."""
        body = {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True}
        answer: dict[str, Any] = json.loads(self.ask("/completion", body))
        return answer

    def stream(self, prompt: str, n: int) -> tuple[int, float]:
        """Let a greedy completion come token by token.

        Returns how many came, and the longest time between two of them in seconds.
        """
        body = {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True}
        data = json.dumps(body | {"stream": True}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/completion", data, {"Content-Type": "application/json"}
        )
        last, longest, count = None, 0.0, 0
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                now = time.monotonic()
                longest = max(longest, now - last if last else 0.0)
                last = now
                part = json.loads(line.removeprefix(b"data: "))
                count = part.get("tokens_predicted", count)
        return count, longest

    def metrics(self) -> dict[str, float]:
        """Counters and gauges of /metrics, without the prefix `llamacpp:`."""
        lines = [line for line in self.ask("/metrics").splitlines() if not line.startswith("#")]
        pairs = [line.rsplit(" ", 1) for line in lines if line]
        return {name.removeprefix("llamacpp:"): float(value) for name, value in pairs}

    @property
    def child(self) -> psutil.Process:
        """The llama-server itself."""
        (found,) = psutil.Process(self.wrapper.pid).children()
        return found

    def private_bytes(self) -> int:
        """Memory of llama-server that belongs to no file."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) << 10

    def planned_bytes(self) -> int:
        """What the log (of `serve -v`) says was allocated, mapped weights left out."""
        found = _BUFFER.findall(self.log.read_text(errors="replace"))
        return int(sum(float(mib) for kind, mib in found if kind != "CPU_Mapped") * 2**20)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Signal the wrapper and wait; its exit code, and the seconds it took."""
        started = time.monotonic()
        self.wrapper.send_signal(number)
        return self.wrapper.wait(STOP_SECONDS), time.monotonic() - started


@contextmanager
def serving(
    model: Path,
    log: Path,
    *argv: str,
    wrap: Callable[[list[str]], list[str]] = lambda command: command,
) -> Iterator[Server]:
    """Start the command, wait until the model is loaded, and leave nothing running."""
    port = free_port()
    command = [sys.executable, "-m", "swapmoe", "serve", "-m", str(model), "--port", str(port)]
    # Waiting threads must not spin: tests share the machine.
    env = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    with log.open("wb") as output:
        wrapper = subprocess.Popen(
            wrap([*command, *argv]),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    server = Server(wrapper, port, log)
    try:
        wait_until_ready(server)
        yield server
    finally:
        if wrapper.poll() is None:
            children = psutil.Process(wrapper.pid).children()
            wrapper.kill()
            wrapper.wait()
            for child in children:
                child.kill()


def wait_until_ready(server: Server) -> None:
    """Wait for the model; raises AssertionError when the server ends before, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.wrapper.poll() is not None:
            raise AssertionError(f"the server ended: {server.log.read_text(errors='replace')}")
        try:
            server.ask("/health", timeout=5)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError("the server does not get ready")
