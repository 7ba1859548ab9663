"""The build that a launch starts: found by its receipt, proved unaltered."""

import signal

from swapmoe import console, receipts, toolchain
from swapmoe.errors import LaunchError
from swapmoe.pins import Pin
from swapmoe.receipts import Receipt

SIGILL = int(getattr(signal, "SIGILL", 4))


def usable_receipt(pin: Pin, program: str) -> Receipt:
    """The last build of this pin, proved unaltered. Raises `LaunchError` when there is none."""
    receipt = receipts.latest(pin.tag)
    if receipt is None or program not in receipt.files:
        raise LaunchError(
            f"no build of {pin.tag} yet" if receipt is None else f"{program} is not built yet",
            hint="swapmoe build",
        )
    if receipt.tree_id != pin.manifest.series.tree:
        raise LaunchError(
            "the build is older than the patches",
            evidence=[
                f"tree id of the build:   {receipt.tree_id}",
                f"tree id of the patches: {pin.manifest.series.tree}",
            ],
            hint="swapmoe build",
        )
    if changed := receipt.changed_files():
        raise LaunchError(
            "the build is not the one its receipt describes",
            evidence=[f"gone or altered in {receipt.bin_dir}: {', '.join(changed)}"],
            hint="swapmoe build",
        )
    absent = absent_flags(receipt)
    if absent:
        console.note(
            f"this build was made for a CPU with {', '.join(absent)}, which this one lacks; "
            "if it dies, run: swapmoe build"
        )
    return receipt


def absent_flags(receipt: Receipt) -> list[str]:
    """CPU flags that the build was made with and this CPU lacks (the first eight)."""
    here = toolchain.cpu_flags()
    return sorted(set(receipt.cpu_flags) - set(here))[:8] if here else []


def illegal_instruction(receipt: Receipt, program: str) -> LaunchError:
    """What to tell the user when a program was ended by SIGILL."""
    evidence = [f"program: {receipt.program(program)}"]
    if absent := absent_flags(receipt):
        evidence.append(f"it was built for a CPU with: {', '.join(absent)}")
    kind = "for the CPU it was built on" if receipt.native else "for any CPU"
    return LaunchError(
        f"{program} met an instruction this CPU does not have (SIGILL); it was built {kind}",
        evidence=evidence,
        hint="swapmoe build --portable" if receipt.native else "report this with your CPU's model",
    )
