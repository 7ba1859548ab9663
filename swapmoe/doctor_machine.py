"""Processor and memory, for `swapmoe doctor`."""

import platform
import re
from pathlib import Path

import psutil

from swapmoe import limits, memory, toolchain
from swapmoe.errors import LaunchError
from swapmoe.findings import Finding, gib

RESERVED_SHARE = 0.1
"""Above this share of all memory, pages kept back for others are warned about."""
_TRIED_LIMIT = 1 << 30


def machine(root: Path = Path("/")) -> list[Finding]:
    """What a program started here will find. `root` is where proc and sys are looked for."""
    found = [_cpu(root), *_memory(root), _swap(root), *_huge_pages(root)]
    try:
        how = limits.choose(_TRIED_LIMIT).how
        found.append(Finding("ok", "memory limit", f"--memory-limit works, by {how}"))
    except LaunchError as error:
        text = "; ".join(["--memory-limit does not work here", *error.evidence])
        found.append(Finding("note", "memory limit", text))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpu(root: Path) -> Finding:
    name = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    model = name[1].strip() if name else platform.machine()
    return Finding("ok", "cpu", f"{model}, {toolchain.cores()} cores usable")


def _memory(root: Path) -> list[Finding]:
    found = memory.usable(root)
    text = f"{gib(found.usable)} usable of {gib(found.total)}: {found.source}"
    return [Finding("ok", "memory", text)]


def _swap(root: Path) -> Finding:
    swap = psutil.swap_memory()
    if not swap.total:
        return Finding("ok", "swap", "none")
    text = f"{gib(swap.used)} of {gib(swap.total)} in use"
    swappiness = _read(root / "proc/sys/vm/swappiness").strip()
    if swappiness:
        text += f", swappiness {swappiness}"
    if swap.used > swap.total / 2:
        return Finding(
            "warn", "swap", f"{text}: dense weights may be swapped out", "end other programs"
        )
    return Finding("ok", "swap", text)


def _huge_pages(root: Path) -> list[Finding]:
    mode = re.search(r"\[(\w+)\]", _read(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    info = dict(re.findall(r"^(\w+):\s+(\d+)", _read(root / "proc/meminfo"), re.MULTILINE))
    if not mode and not info:
        return []
    kept = int(info.get("HugePages_Total", 0)) * int(info.get("Hugepagesize", 0)) << 10
    total = int(info.get("MemTotal", 0)) << 10
    text = f"transparent: {mode[1] if mode else 'not known'}; kept back: {gib(kept)}"
    if total and kept > total * RESERVED_SHARE:
        return [
            Finding(
                "warn",
                "huge pages",
                f"{text}, which no ordinary program can use",
                "echo 0 | sudo tee /proc/sys/vm/nr_hugepages",
            )
        ]
    return [Finding("ok", "huge pages", text)]
