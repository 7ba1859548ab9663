"""What the fake programs share: knobs.json beside them says how they behave."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def knob(name: str, default: Any = None) -> Any:
    """The value of a knob now."""
    try:
        return json.loads((HERE / "knobs.json").read_text()).get(name, default)
    except FileNotFoundError:
        return default


def record(program: str) -> None:
    """Append this call to calls.jsonl."""
    with (HERE / "calls.jsonl").open("a") as file:
        file.write(json.dumps([program, *sys.argv[1:]]) + "\n")


def die(how: int | str) -> None:
    """End with an exit code, or by the signal of that name."""
    sys.stdout.flush()
    if isinstance(how, str):
        os.kill(os.getpid(), getattr(signal, how))
    sys.exit(how)
