"""Start llama-cli with streaming on: look first, build the command, hand over the terminal."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from swapmoe import binhelp, console, flags, gguf_info, receipts, toolchain
from swapmoe.config import RunSettings
from swapmoe.errors import LaunchError, SwapmoeError, UsageError
from swapmoe.flags import Launch
from swapmoe.gguf_info import ModelFacts
from swapmoe.pins import Pin
from swapmoe.receipts import Receipt
from swapmoe.run import shell_quote

PROGRAM = "llama-cli"
CHAT_COMMANDS = ("/exit", "/regen", "/clear", "/image ", "/audio ", "/video ", "/read ", "/glob ")
"""llama-cli takes a prompt that starts with one of these as a command, and then never ends."""


@dataclass(frozen=True)
class Request:
    """What the user asked for. `prompt` None = chat; `extra` goes to llama-cli verbatim."""

    model: Path
    prompt: str | None
    settings: RunSettings
    extra: tuple[str, ...] = ()
    verbose: bool = False


@dataclass(frozen=True)
class Plan:
    """A command that is ready to start. `dropped_env` are variables the child will not see."""

    argv: tuple[str, ...]
    dropped_env: tuple[str, ...]
    facts: ModelFacts
    receipt: Receipt

    @property
    def command(self) -> str:
        """The command for a POSIX shell, ready to paste."""
        unset = [word for name in self.dropped_env for word in ("-u", name)]
        return shell_quote(["env", *unset, *self.argv] if unset else self.argv)

    def to_json(self) -> dict[str, object]:
        """The plan for machines."""
        facts = self.facts
        return {
            "command": self.command,
            "argv": list(self.argv),
            "env_removed": list(self.dropped_env),
            "version": self.receipt.version_line,
            "model": {
                "path": str(facts.path),
                "shards": [str(shard) for shard in facts.shards],
                "architecture": facts.architecture,
                "file_bytes": facts.file_bytes,
                "experts": facts.expert_count,
                "experts_used": facts.expert_used_count,
                "routed_slices": facts.slices,
                "routed_bytes": facts.routed_bytes,
            },
        }


def prepare(request: Request, pin: Pin, env: Mapping[str, str] | None = None) -> Plan:
    """Check the request, the model and the build; nothing is started but `llama-cli --help`.

    Raises `UsageError`, `ModelError`, or `LaunchError` when there is no usable build.
    """
    env = os.environ if env is None else env
    _check_prompt(request.prompt)
    facts = gguf_info.inspect(request.model)
    gguf_info.require_streamable(facts)
    if facts.path.name != request.model.name:
        console.note(f"{request.model.name} is a later shard; starting with {facts.path.name}")
    receipt = usable_receipt(pin)
    program = receipt.program(PROGRAM)
    found = binhelp.check(program)
    if not found.conclusive:
        console.note(f"{program} does not list its options; going on without that check")
    names = flags.options_in(request.extra, found.takes_value)
    flags.check_extra(names)
    launch = Launch(
        model=facts.path,
        prompt=request.prompt,
        settings=request.settings,
        verbose=request.verbose,
        plain=not sys.stdout.isatty(),
    )
    argv = [str(program), *flags.build_argv(launch, request.extra, names)]
    return Plan(tuple(argv), tuple(flags.contradicting_env(env, argv)), facts, receipt)


def _check_prompt(prompt: str | None) -> None:
    if prompt is None:
        return
    if "\0" in prompt:
        raise UsageError("the prompt holds a null character", hint="remove it")
    if not prompt.replace("\\n", "").strip("\n"):  # llama-cli skips it and waits for another one
        raise UsageError("the prompt is empty", hint='give a text: swapmoe run -m MODEL -p "..."')
    if prompt.startswith(CHAT_COMMANDS):
        raise UsageError(
            f"llama-cli would take this prompt as its own command {prompt.split()[0]}",
            evidence=["it would then wait for more input that never comes"],
            hint="put a space before it",
        )


def usable_receipt(pin: Pin) -> Receipt:
    """The last build of this pin, proved unaltered. Raises `LaunchError` when there is none."""
    receipt = receipts.latest(pin.tag)
    if receipt is None or PROGRAM not in receipt.files:
        raise LaunchError(
            f"no build of {pin.tag} yet" if receipt is None else f"{PROGRAM} is not built yet",
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
    absent = _absent_flags(receipt)
    if absent:
        console.note(
            f"this build was made for a CPU with {', '.join(absent)}, which this one lacks; "
            "if it dies, run: swapmoe build"
        )
    return receipt


def _absent_flags(receipt: Receipt) -> list[str]:
    here = toolchain.cpu_flags()
    return sorted(set(receipt.cpu_flags) - set(here))[:8] if here else []


def execute(plan: Plan) -> int:
    """Start llama-cli and return its exit code, 128 + n when signal n ended it.

    Its output is its own, byte for byte. It reads the terminal, or nothing. Raises `LaunchError`
    when it cannot be started.
    """
    for name in plan.dropped_env:
        console.note(f"{name} is not passed on: it contradicts how experts are streamed")
    child_env = {k: v for k, v in os.environ.items() if k not in plan.dropped_env}
    sys.stdout.flush()
    sys.stderr.flush()
    with _handing_on_signals() as children:
        try:
            child = subprocess.Popen(
                plan.argv, env=child_env, stdin=None if _is_terminal() else subprocess.DEVNULL
            )
        except OSError as error:
            raise _cannot_start(plan, error) from None
        children.append(child)
        code = child.wait()
    if code in (-_ILLEGAL, 128 + _ILLEGAL):
        console.print_error(_illegal_instruction(plan.receipt))
    return 128 - code if code < 0 else code


_ILLEGAL = int(getattr(signal, "SIGILL", 4))


def _cannot_start(plan: Plan, error: OSError) -> LaunchError:
    too_long = error.errno == errno.E2BIG
    return LaunchError(
        "the prompt is too long for a command line" if too_long else f"cannot start {plan.argv[0]}",
        evidence=[error.strerror or str(error)],
        hint="shorten the prompt" if too_long else "swapmoe build",
    )


def _is_terminal() -> bool:
    try:
        return sys.stdin.isatty()
    except (AttributeError, ValueError):  # no stdin at all, or a closed one
        return False


@contextmanager
def _handing_on_signals() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Ctrl-C is the child's own (it has the terminal); TERM and HUP are handed on to it."""
    children: list[subprocess.Popen[bytes]] = []

    def leave_to_child(_number: int, _frame: FrameType | None) -> None:
        pass

    def hand_on(number: int, _frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    previous = {signal.SIGINT: signal.signal(signal.SIGINT, leave_to_child)}
    for name in ("SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):
            previous[number] = signal.signal(number, hand_on)
    try:
        yield children
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _illegal_instruction(receipt: Receipt) -> SwapmoeError:
    evidence = [f"program: {receipt.program(PROGRAM)}"]
    if absent := _absent_flags(receipt):
        evidence.append(f"it was built for a CPU with: {', '.join(absent)}")
    kind = "for the CPU it was built on" if receipt.native else "for any CPU"
    return LaunchError(
        f"{PROGRAM} met an instruction this CPU does not have (SIGILL); it was built {kind}",
        evidence=evidence,
        hint="swapmoe build --portable" if receipt.native else "report this with your CPU's model",
    )


def require_terminal_for_chat(prompt: str | None) -> None:
    """Raises `UsageError` for a chat without a terminal: llama-cli would never end."""
    if prompt is None and not _is_terminal():
        raise UsageError(
            "a chat needs a terminal on stdin", hint='give a prompt: swapmoe run -m MODEL -p "..."'
        )


def describe(plan: Plan) -> Sequence[str]:
    """Lines about the plan for people: the command alone is what goes to stdout."""
    facts = plan.facts
    return [
        f"{facts.architecture}, {facts.file_bytes:,} bytes in {len(facts.shards)} file(s); "
        f"{facts.slices:,} routed slices, {facts.routed_bytes:,} bytes",
        f"{plan.receipt.version_line}",
        *(f"removed from the environment: {name}" for name in plan.dropped_env),
    ]
