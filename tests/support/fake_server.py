"""`swapmoe serve` in a process of its own, with the fake llama-server of a workshop behind it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.building import Workshop

WRAPPER = """\
import sys
from pathlib import Path
from swapmoe import pins, readiness, supervise
from swapmoe.cli import main
from tests.support.building import make_pin
pins.load = lambda _=None: make_pin(Path("."), {tree!r})
readiness.GRACE_SECONDS, supervise.GRACE_SECONDS = 0.3, 1.0
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def serving(
    shop: Workshop, model: Path, port: int, *argv: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """The command; its fake server has written its first line."""
    script = shop.root / "wrapper.py"
    script.write_text(WRAPPER.format(tree=shop.tree_id))
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TMPDIR": str(shop.root / "tmp"),
    }
    command = [sys.executable, script, "serve", "-m", model, "--port", str(port), *argv]
    wrapper = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert wrapper.stdout is not None
    with wrapper.stdout:
        try:
            assert wrapper.stdout.readline() == b"hello\n"
            yield wrapper
        finally:
            wrapper.kill()
            wrapper.wait()
