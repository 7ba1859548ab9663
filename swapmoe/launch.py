"""What a start of llama-cli or llama-server will be: look at everything first, then build it."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from swapmoe import (
    activation,
    adapters,
    binhelp,
    budget,
    console,
    filesystems,
    flags,
    gguf_info,
    health,
    installed,
    legacy,
    limits,
    openmp,
    plan_text,
    ports,
    presets,
    sizes,
)
from swapmoe.activation import Expected
from swapmoe.budget import Demand
from swapmoe.config import RunSettings, ServeSettings
from swapmoe.errors import UsageError
from swapmoe.filesystems import Place
from swapmoe.flag_table import Launch, rows
from swapmoe.gguf_info import ModelFacts
from swapmoe.health import Endpoint
from swapmoe.limits import Limit
from swapmoe.pins import Pin
from swapmoe.presets import Preset
from swapmoe.receipts import Receipt
from swapmoe.run import shell_quote

CHAT_COMMANDS = ("/exit", "/regen", "/clear", "/image ", "/audio ", "/video ", "/read ", "/glob ")
"""llama-cli takes a prompt that starts with one of these as a command, and then never ends."""


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

    `dropped_env` are variables the child will not see, `added_env` those it will see besides,
    `options` (option, values, what for) what swapmoe wrote into `argv`. `expected` None = the
    program ends without loading the model. `endpoint` is where a server listens; with
    `shared_port` others may already.
    """

    argv: tuple[str, ...]
    dropped_env: tuple[str, ...]
    added_env: Mapping[str, str]
    options: tuple[tuple[str, tuple[str, ...], str], ...]
    launch: Launch
    facts: ModelFacts
    demand: Demand
    expected: Expected | None
    receipt: Receipt
    preset: Preset
    places: tuple[Place, ...]
    endpoint: Endpoint | None = None
    shared_port: bool = False
    limit: Limit | None = None

    @property
    def command(self) -> str:
        """The command for a POSIX shell, ready to paste."""
        changes = [word for name in self.dropped_env for word in ("-u", name)]
        changes += [f"{name}={value}" for name, value in self.added_env.items()]
        scope = self.limit.scope if self.limit else ()
        return shell_quote([*(["env", *changes] if changes else []), *scope, *self.argv])

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What the child sees of `env`, and what is added to it."""
        kept = {name: value for name, value in env.items() if name not in self.dropped_env}
        return {**kept, **self.added_env}

    def to_json(self) -> dict[str, object]:
        """The plan for machines; sizes in bytes."""
        facts = self.facts
        return {
            "command": self.command,
            "argv": list(self.argv),
            "env_removed": list(self.dropped_env),
            "env_added": dict(self.added_env),
            "options": [
                {"option": option, "values": list(values), "for": purpose}
                for option, values, purpose in self.options
            ],
            "version": self.receipt.version_line,
            "places": [filesystems.to_json(place) for place in self.places],
            "plan": plan_text.to_json(self.preset.plan),
            "url": self.endpoint.url if self.endpoint else None,
            "memory_limit": {"bytes": self.limit.size, "by": self.limit.how}
            if self.limit
            else None,
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

    Raises `UsageError`, `ModelError`, or `LaunchError` when there is no usable build, no free port
    or no way to limit memory.
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
    extra, taken = legacy.take_mapping(request.extra, found.takes_value)
    for words in taken:
        console.note(f"{words} is what streaming does anyway; it is not passed on")
    given = flags.options_in(extra, found.takes_value)
    flags.check_extra(given, launch.program)
    binhelp.check_known(found, given, program)
    drafted = budget.check_combination(request.settings, given, env)
    demand = budget.demand(facts, given)
    budget.check_limits(request.settings, facts, demand)
    remarks = budget.remarks(request.settings, facts, demand, drafted)
    places = filesystems.places(facts.shards)
    slow = [text for place in places for text in filesystems.warnings(place)]
    for remark in remarks + adapters.check(given, facts) + slow:
        console.note(remark)
    for option in given:
        if option.name in ("-cram", "--cache-ram") and option.value == "-1":
            console.note("the prompt cache has no limit (--cache-ram -1): it can fill the memory")
    preset = presets.preset(facts, request.settings, given)
    for remark in preset.notes:
        console.note(remark)
    launch = replace(
        launch, model=facts.path, serve=_with_port(request.serve), sizing=preset.sizing
    )
    written = flags.written_rows(launch, given, found.knows)
    argv = [str(program), *flags.build_argv(written, extra)]
    names = {option.name for option in given}
    io = request.settings.io
    ends_at_once = activation.ENDS_AT_ONCE & names
    expected = activation.expected(facts, request.settings, other_models=drafted > 0)
    return Plan(
        argv=tuple(argv),
        dropped_env=tuple(flags.contradicting_env(env, argv, launch.program)),
        added_env=openmp.variables(io if io != "auto" else preset.plan.engine, env),
        options=tuple((words[0], tuple(words[1:]), row.setting) for row, words in written if words),
        launch=launch,
        facts=facts,
        demand=demand,
        expected=None if ends_at_once else expected,
        receipt=receipt,
        preset=preset,
        places=tuple(places),
        endpoint=health.endpoint(launch.serve, given, env) if launch.serve else None,
        shared_port="--reuse-port" in names or bool(env.get("LLAMA_ARG_REUSE_PORT")),
        limit=limits.choose(request.settings.memory_limit)
        if request.settings.memory_limit
        else None,
    )


def _with_port(settings: ServeSettings | None) -> ServeSettings | None:
    """The settings with a port that is free, where any is asked for."""
    if settings is None or settings.port or health.endpoint(settings).is_socket_file:
        return settings
    return settings.model_copy(update={"port": ports.choose(settings.host)})


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


def describe(plan: Plan) -> Sequence[str]:
    """Lines about the plan for people: the command alone is what goes to stdout."""
    facts = plan.facts
    return [
        f"{facts.architecture}, {facts.file_bytes:,} bytes in {len(facts.shards)} file(s); "
        f"{facts.slices:,} routed slices, {facts.routed_bytes:,} bytes; "
        f"{plan.demand.bytes_per_token:,} bytes per token",
        f"{plan.receipt.version_line}",
        plan.preset.summary,
        *(
            f"on {place.kind}, {place.device or 'no disk'} ({place.medium}), at {place.mount}"
            for place in plan.places
        ),
        *(
            f"{' '.join([option, *values])}: {purpose}"
            for option, values, purpose in plan.options
            if purpose.startswith(("streaming", "plan"))
        ),
        *(f"removed from the environment: {name}" for name in plan.dropped_env),
        *(
            f"{name}={value}: compute threads spin for a short time only"
            for name, value in plan.added_env.items()
        ),
        *([f"listens on {plan.endpoint.url}"] if plan.endpoint else []),
        *(
            [f"memory limit: {sizes.whole_mib(plan.limit.size):,} MiB by {plan.limit.how}"]
            if plan.limit
            else []
        ),
    ]
