"""Start llama-cli or llama-server with streaming on: look first, build the command, hand over."""

import errno
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from swapmoe import (
    activation,
    binhelp,
    budget,
    console,
    flags,
    gguf_info,
    health,
    installed,
    supervise,
)
from swapmoe.activation import Expected
from swapmoe.budget import Demand
from swapmoe.config import RunSettings, ServeSettings
from swapmoe.errors import LaunchError, UsageError
from swapmoe.flag_table import LOG_VARIABLE, Launch, rows
from swapmoe.gguf_info import ModelFacts
from swapmoe.pins import Pin
from swapmoe.receipts import Receipt
from swapmoe.run import shell_quote

CHAT_COMMANDS = ("/exit", "/regen", "/clear", "/image ", "/audio ", "/video ", "/read ", "/glob ")
"""llama-cli takes a prompt that starts with one of these as a command, and then never ends."""
READY_GRACE_SECONDS = 5.0
"""How long after a server is ready its lines may still be on their way."""


@dataclass(frozen=True)
class Request:
    """What the user asked for. `extra` goes to the program verbatim.

    With `serve` it is a server; else llama-cli with a prompt, or a chat when `prompt` is None.
    """

    model: Path
    prompt: str | None
    settings: RunSettings
    extra: tuple[str, ...] = ()
    verbose: bool = False
    serve: ServeSettings | None = None


@dataclass(frozen=True)
class Plan:
    """A command that is ready to start.

    `dropped_env` are variables the child will not see, `options` (option, values, what for) what
    swapmoe wrote into `argv`. `expected` None = the program ends without loading the model.
    """

    argv: tuple[str, ...]
    dropped_env: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...], str], ...]
    launch: Launch
    facts: ModelFacts
    demand: Demand
    expected: Expected | None
    receipt: Receipt

    @property
    def command(self) -> str:
        """The command for a POSIX shell, ready to paste."""
        unset = [word for name in self.dropped_env for word in ("-u", name)]
        return shell_quote(["env", *unset, *self.argv] if unset else self.argv)

    def to_json(self) -> dict[str, object]:
        """The plan for machines; sizes in bytes."""
        facts = self.facts
        return {
            "command": self.command,
            "argv": list(self.argv),
            "env_removed": list(self.dropped_env),
            "options": [
                {"option": option, "values": list(values), "for": purpose}
                for option, values, purpose in self.options
            ],
            "version": self.receipt.version_line,
            "model": {
                "path": str(facts.path),
                "shards": [str(shard) for shard in facts.shards],
                "architecture": facts.architecture,
                "file_bytes": facts.file_bytes,
                "experts": facts.expert_count,
                "experts_used": self.demand.used,
                "routed_slices": facts.slices,
                "routed_bytes": facts.routed_bytes,
                "bytes_per_token": self.demand.bytes_per_token,
            },
        }


def prepare(request: Request, pin: Pin, env: Mapping[str, str] | None = None) -> Plan:
    """Check the request, the model and the build; only the program's `--help` is started.

    Raises `UsageError`, `ModelError`, or `LaunchError` when there is no usable build.
    """
    env = os.environ if env is None else env
    launch = Launch(
        model=request.model,
        prompt=request.prompt,
        settings=request.settings,
        verbose=request.verbose,
        plain=not sys.stdout.isatty(),
        serve=request.serve,
    )
    _check_prompt(request.prompt)
    if request.serve and request.model.is_dir():
        raise UsageError(
            f"{request.model} is a folder; a server over several models is not supported",
            evidence=["the servers it would start would not get the expert options"],
            hint="swapmoe serve -m MODEL.gguf",
        )
    facts = gguf_info.inspect(request.model)
    gguf_info.require_streamable(facts)
    if facts.path.name != request.model.name:
        console.note(f"{request.model.name} is a later shard; starting with {facts.path.name}")
    receipt = installed.usable_receipt(pin, launch.program)
    program = receipt.program(launch.program)
    found = binhelp.check(program, rows(launch.program))
    if not found.conclusive:
        console.note(f"{program} does not list its options; going on without that check")
    given = flags.options_in(request.extra, found.takes_value)
    flags.check_extra(given, launch.program)
    drafted = budget.check_combination(request.settings, given, env)
    demand = budget.demand(facts, given)
    budget.check_limits(request.settings, facts, demand)
    for remark in budget.remarks(request.settings, facts, demand, drafted):
        console.note(remark)
    for option in given:
        if option.name in ("-cram", "--cache-ram") and option.value == "-1":
            console.note("the prompt cache has no limit (--cache-ram -1): it can fill the memory")
    launch = replace(launch, model=facts.path)
    argv = [str(program), *flags.build_argv(launch, request.extra, given)]
    ends_at_once = activation.ENDS_AT_ONCE & {option.name for option in given}
    expected = activation.expected(facts, request.settings, other_models=drafted > 0)
    return Plan(
        argv=tuple(argv),
        dropped_env=tuple(flags.contradicting_env(env, argv, launch.program)),
        options=tuple(
            (row.option, tuple(values), row.setting)
            for row, values in flags.written_rows(launch, given)
        ),
        launch=launch,
        facts=facts,
        demand=demand,
        expected=None if ends_at_once else expected,
        receipt=receipt,
    )


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


def execute(plan: Plan) -> int:
    """Start the program and return its exit code, 128 + n when signal n ended it.

    Raises `LaunchError` when it cannot be started, and when it has run without confirming that it
    streams as asked: a server is ended as soon as that is known.
    """
    for name in plan.dropped_env:
        console.note(f"{name} is not passed on: it contradicts how experts are streamed")
    env = {key: value for key, value in os.environ.items() if key not in plan.dropped_env}
    serve = plan.launch.serve
    with activation.private_log() as log:
        if plan.expected:
            env[LOG_VARIABLE] = str(log)
        check = _confirm_when_ready(plan, log) if serve and plan.expected else None
        try:
            code = supervise.run_child(plan.argv, env, terminal=serve is None, check=check)
        except OSError as error:
            raise _cannot_start(plan, error) from None
        if code == 0:
            _confirm(plan, log)
    if code == 128 + installed.SIGILL:
        console.print_error(installed.illegal_instruction(plan.receipt, plan.launch.program))
    return code


def _confirm(plan: Plan, log: Path) -> None:
    text = activation.read_log(log)
    if plan.expected and (missing := plan.expected.missing(text)):
        raise activation.failure(plan.launch.program, missing, text)


def _confirm_when_ready(plan: Plan, log: Path) -> Callable[[], bool]:
    """Ends the waiting when all lines are there; raises when the server is ready without them."""
    ready_since: float | None = None

    def check() -> bool:
        nonlocal ready_since
        assert plan.expected is not None
        assert plan.launch.serve is not None
        if not plan.expected.missing(activation.read_log(log)):
            console.say("experts are streamed as asked")
            return True
        if ready_since is None and health.is_ready(plan.launch.serve):
            ready_since = time.monotonic()
        if ready_since is not None and time.monotonic() - ready_since > READY_GRACE_SECONDS:
            _confirm(plan, log)
        return False

    return check


def _cannot_start(plan: Plan, error: OSError) -> LaunchError:
    too_long = error.errno == errno.E2BIG
    return LaunchError(
        "the prompt is too long for a command line" if too_long else f"cannot start {plan.argv[0]}",
        evidence=[error.strerror or str(error)],
        hint="shorten the prompt" if too_long else "swapmoe build",
    )


def require_terminal_for_chat(prompt: str | None) -> None:
    """Raises `UsageError` for a chat without a terminal: llama-cli would never end."""
    if prompt is None and not supervise.stdin_is_terminal():
        raise UsageError(
            "a chat needs a terminal on stdin", hint='give a prompt: swapmoe run -m MODEL -p "..."'
        )


def describe(plan: Plan) -> Sequence[str]:
    """Lines about the plan for people: the command alone is what goes to stdout."""
    facts = plan.facts
    return [
        f"{facts.architecture}, {facts.file_bytes:,} bytes in {len(facts.shards)} file(s); "
        f"{facts.slices:,} routed slices, {facts.routed_bytes:,} bytes; "
        f"{plan.demand.bytes_per_token:,} bytes per token",
        f"{plan.receipt.version_line}",
        *(
            f"{' '.join([option, *values])}: {purpose}"
            for option, values, purpose in plan.options
            if purpose.startswith("streaming")
        ),
        *(f"removed from the environment: {name}" for name in plan.dropped_env),
    ]
