"""Programs of a build with reading that goes wrong: see faults.c."""

import json
import os
import subprocess
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from swapmoe.run import capture
from tests.support.llama import LIBRARY_LOG, streaming
from tests.support.server import Server, free_port, wait_until_ready

SOURCE = Path(__file__).with_name("faults.c")
DIRECT = (*streaming("direct"), "--expert-cache-size", "1")
ASK_SECONDS = 60.0
STOP_SECONDS = 20.0


def compile_shim(folder: Path) -> Path:
    """Compile the library to preload."""
    target = folder / "faults.so"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
    capture([os.environ.get("CC", "cc"), *flags, SOURCE, "-o", target, "-ldl"], timeout=60)
    return target


@dataclass(frozen=True)
class Faults:
    """The environment of a program; `folder` is where it says what happened."""

    shim: Path
    folder: Path

    def env(self, **settings: int | str) -> dict[str, str]:
        """Return variables: FAULT_ERRNO is `errno`, and so on."""
        (self.folder / "faults.log").unlink(missing_ok=True)
        own = {f"FAULT_{name.upper()}": str(value) for name, value in settings.items()}
        log = str(self.folder / "faults.log")
        return {"LD_PRELOAD": str(self.shim), "FAULT_LOG": log, **own}

    def happened(self) -> set[str]:
        """Return the kinds of faults since env()."""
        path = self.folder / "faults.log"
        return set(path.read_text().split()) if path.exists() else set()

    @property
    def switch(self) -> Path:
        """The file to give as `when`: faults happen while it exists."""
        return self.folder / "switch"


@dataclass(frozen=True)
class Answer:
    """What a server said: the text, or the error."""

    text: str
    error: str


@contextmanager
def server(
    bin_dir: Path,
    model: Path,
    log: Path,
    env: dict[str, str],
    *flags: str,
    setup: Callable[[], None] | None = None,
) -> Iterator[Server]:
    """Start a build's llama-server; it is ended at the end, so that its log is whole."""
    port = free_port()
    argv = [str(bin_dir / "llama-server"), "-m", str(model), "--port", str(port), "-t", "2"]
    argv += ["-c", "512", "-np", "1", "--cache-ram", "0", "--no-webui", "--metrics", *LIBRARY_LOG]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    with log.open("wb") as output:
        child = subprocess.Popen(
            [*argv, *flags],
            env=clean | {"OMP_WAIT_POLICY": "passive"} | env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=setup,
        )
    found = Server(child, port, log)
    try:
        wait_until_ready(found)
        yield found
    finally:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def ask(found: Server, prompt: str, n: int = 12) -> Answer:
    """Ask for a greedy completion without a cached prompt; a time-out is an error of its own."""
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True}
    try:
        answer = json.loads(found.ask("/completion", body | {"cache_prompt": False}, ASK_SECONDS))
    except urllib.error.HTTPError as error:
        return Answer("", error.read().decode(errors="replace"))
    return Answer(answer["content"], "")
