"""What a fake program says of its engine: the lines that its options ask for, and /health."""

import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from knobs import knob

LINES = {
    "--expert-io": "expert_stream: io = {}",
    "--expert-cache-size": "expert_stream: cache size = {}.00 MiB",
    "--expert-keep-recent": "expert keep-recent window = {} experts per layer",
    "--expert-fixation": "expert fixation active \u2014 top-k pinned for the first {} "
    "forward passes",
    "--expert-prefetch": "async prefetch thread started",
    "--expert-streaming": "expert streaming enabled \u2014 skipping initial mmap prefetch "
    "for routed expert tensors",
}


def write_log(argv: list[str]) -> None:
    """Write the log where asked; lines that hold one of the `unsaid` texts are left out."""
    path = os.environ.get("LLAMA_ARG_EXPERT_LOG")
    if not path:
        return
    lines = [f"expert_stream: tracking {knob('slices', 24)} routed expert slices"]
    for option, text in LINES.items():
        if option in argv:
            lines.append(text.format(*argv[argv.index(option) + 1 :][:1]))
    lines += knob("log", [])
    kept = [line for line in lines if not any(text in line for text in knob("unsaid", []))]
    Path(path).write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(knob("health"))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def answer_health(argv: list[str]) -> None:
    """Answer on the port asked for, with the status of the knob, in the background."""
    if knob("health") and "--port" in argv:
        port = int(argv[argv.index("--port") + 1])
        server = HTTPServer(("127.0.0.1", port), _Health)
        threading.Thread(target=server.serve_forever, daemon=True).start()
