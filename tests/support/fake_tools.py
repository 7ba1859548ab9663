"""Installs the fake cmake, ninja, compiler and llama programs of `fakes/` into a folder."""

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from swapmoe.flag_table import TABLE

FAKES = Path(__file__).parent / "fakes"
SWITCHES = (
    *("--no-escape", "--single-turn", "--expert-streaming", "--expert-prefetch", "--no-warmup"),
    *("--metrics", "--simple-io"),
)
SHEBANG = f"#!{sys.executable} -S\n"


class FakeTools:
    """A folder of fake programs and its knobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for name in ("knobs.py", "engine.py"):
            shutil.copy(FAKES / name, folder)
        for name in ("cmake", "ninja", "c++", "llama"):
            self._install(name, name)
        self._install("c++", "cc")
        self.set(help=help_text(row.option for row in TABLE))

    def _install(self, source: str, name: str) -> Path:
        program = self.folder / name
        text = (FAKES / source).read_text().replace("@HERE@", str(self.folder))
        program.write_text(SHEBANG + text)
        program.chmod(0o755)
        return program

    def remove(self, *names: str) -> None:
        """Uninstall programs."""
        for name in names:
            (self.folder / name).unlink()

    def set(self, **knobs: Any) -> None:
        """Turn knobs; the others stay."""
        path = self.folder / "knobs.json"
        old = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(old | knobs))

    def calls(self, program: str) -> list[list[str]]:
        """Arguments of each call of a program so far."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call[1:] for call in map(json.loads, lines) if call[0] == program]

    def forget_calls(self) -> None:
        """Start counting calls anew."""
        (self.folder / "calls.jsonl").unlink(missing_ok=True)

    def seen(self) -> dict[str, Any]:
        """What the last llama run found: its stdin and its LLAMA variables."""
        found: dict[str, Any] = json.loads((self.folder / "seen.json").read_text())
        return found


def help_text(options: Iterable[str]) -> str:
    """A help text in llama.cpp's layout that lists these options and some others."""
    blocks = ["----- common params -----\n", "-h,    --help, --usage                  print usage"]
    for option in options:
        value = "" if option in SWITCHES else " N"
        blocks.append(f"{option + value:<40}does what it says\n{'':40}- none: not an option")
    blocks += ["-np,   --parallel N    slots", "--override-kv KEY=TYPE:VALUE,...    keys"]
    blocks += ["-md,   --model-draft FNAME    draft", "--spec-type TYPE    kind"]
    blocks += ["--temp N    heat", "-a,    --alias STRING    name", "--list-devices    devices"]
    blocks += ["--reuse-port    sharing"]
    blocks += ["--lora FNAME    adapter", "--lora-scaled FNAME:SCALE,...    adapter"]
    blocks += [f"--filler-{n} N{'':25}(default: {n})\n{'':40}(env: LLAMA_ARG_X)" for n in range(20)]
    return "\n".join(blocks)
