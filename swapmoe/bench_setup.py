"""What benchmarks start from: the machine, the builds, a generated model."""

import os
import platform
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import psutil

from swapmoe import baseline, console, models, paths, pins, receipts
from swapmoe.comparison import GB
from swapmoe.errors import LaunchError


def interrupt(_number: int, _frame: object) -> NoReturn:
    """Let SIGTERM clean up as Ctrl-C does."""
    raise KeyboardInterrupt


def machine() -> str:
    """Return one line on the machine."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.exists() else []
    memory = psutil.virtual_memory().total / GB
    cpu = names[0].strip() if names else platform.machine()
    system = f"{platform.system()} {platform.release()}"
    return f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GB RAM, {system}"


def patched_build(pin: str | None = None) -> Path:
    """Return the folder of a pin's latest patched programs. Raises LaunchError when there is none.

    Without `pin`, of the default one.
    """
    receipt = receipts.latest(pins.load(pin).tag)
    if not receipt:
        raise LaunchError("nothing is built yet", hint="swapmoe build, or --patched and --base")
    return receipt.bin_dir


def unpatched_build() -> Path:
    """Return the folder of unpatched programs built as the latest patched ones, building them.

    Raises LaunchError when there is no patched build.
    """
    pin = pins.load()
    receipt = receipts.latest(pin.tag)
    if not receipt:
        raise LaunchError("nothing is built yet", hint="swapmoe build, or --patched and --base")
    return baseline.build_unpatched(pin, receipt)


def model(preset: str, disposable: Sequence[str] = ()) -> Path:
    """Return the generated model of a preset, writing it when it is not there yet.

    When the disk is too full, models of the presets `disposable` go first. Raises ModelError.
    """
    spec = models.PRESETS[preset]
    folder = paths.cache_dir() / "models"
    folder.mkdir(parents=True, exist_ok=True)
    total = models.total_bytes(spec)
    if not (folder / f"{preset}-{spec.digest}.gguf").exists():
        for other in disposable:
            if shutil.disk_usage(folder).free > total + 2 * models.DISK_RESERVE:
                break
            remove(other)
    with console.progress(f"model {preset} ({total / GB:.1f} GB)", total) as progress:
        return models.ensure_model(spec, folder, preset, progress=progress)


def remove(preset: str) -> None:
    """Remove the generated models of a preset, older versions of it too."""
    for path in (paths.cache_dir() / "models").glob(f"{preset}-????????.gguf*"):
        path.unlink(missing_ok=True)
