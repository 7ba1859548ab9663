"""Starts what a launch plan says, watches it, and explains how it ended."""

import errno
import os
import signal
from contextlib import ExitStack
from pathlib import Path

from swapmoe import activation, console, installed, ports, supervise, toolchain
from swapmoe.cgroup import MemoryGroup
from swapmoe.errors import LaunchError, UsageError
from swapmoe.flag_table import LOG_VARIABLE
from swapmoe.launch import Plan
from swapmoe.readiness import Watch
from swapmoe.recorder import Recorder

_LINES_SHOWN = 12
_CRASHES = {
    9: "something killed it; if memory was short: --memory-limit, --cache-size, --ctx",
    7: "a page of the model could not be read: is the file whole, is its disk in order?",
    11: "report this, with the log of the same command with -v",
    6: "what it printed above says why",
}
"""Signals that end a program and are nobody's wish -> what to do."""


def execute(plan: Plan) -> int:
    """Start the program and return its exit code, 128 + n when signal n ended it.

    Raises `LaunchError` when it cannot be started, and when it has run without confirming that it
    streams as asked: a server is ended as soon as that is known.
    """
    for name in plan.dropped_env:
        console.note(f"{name} is not passed on: it contradicts how experts are streamed")
    env = plan.environment(os.environ)
    if plan.endpoint and not plan.shared_port:
        ports.check_free(plan.endpoint)
    if plan.endpoint:
        console.say(plan.preset.summary)
    with ExitStack() as stack:
        log = stack.enter_context(activation.private_log())
        if plan.expected:
            env[LOG_VARIABLE] = str(log)
        argv, group = list(plan.argv), None
        if plan.limit:
            argv, group = stack.enter_context(plan.limit.applied(argv))
        if plan.endpoint and not plan.shared_port:
            stack.callback(ports.remove_socket_file, plan.endpoint)
        watch = _watch(plan, log)
        check = _in_turn(watch, _recorder(plan, log)) if watch else None
        try:
            code = supervise.run_child(argv, env, terminal=plan.endpoint is None, check=check)
        except OSError as error:
            raise _cannot_start(plan, error) from None
        if code == 0:
            _confirm(plan, log)
        else:
            _explain(plan, code, watch, log, group)
    return code


def _watch(plan: Plan, log: Path) -> Watch | None:
    if plan.endpoint is None or plan.expected is None:
        return None
    expected = plan.expected
    assert plan.launch.serve is not None
    return Watch(
        plan.endpoint,
        confirm=lambda: not expected.missing(activation.read_log(log)),
        refuse=lambda: _confirm(plan, log),
        timeout=plan.launch.serve.start_timeout,
    )


def _recorder(plan: Plan, log: Path) -> Recorder | None:
    """What measures a server for later plans; not when fixation or a second model change that."""
    settings = plan.launch.settings
    if plan.endpoint is None or settings.fixation or plan.expected is None:
        return None
    if plan.expected.resident_bytes is None:
        return None
    return Recorder(
        plan.facts,
        plan.endpoint,
        lambda: activation.read_log(log),
        threads=settings.threads or toolchain.cores(),
        budget=plan.preset.plan.budget,
    )


def _in_turn(*checks: supervise.Check | None) -> supervise.Check:
    """One check after the other, each until it is through."""
    left = [check for check in checks if check]

    def check(pid: int) -> bool:
        if left[0](pid):
            left.pop(0)
        return not left

    return check


def _confirm(plan: Plan, log: Path) -> None:
    text = activation.read_log(log)
    if plan.expected and (missing := plan.expected.missing(text)):
        raise activation.failure(plan.launch.program, missing, text)


def _explain(
    plan: Plan, code: int, watch: Watch | None, log: Path, group: MemoryGroup | None
) -> None:
    """Say what is known about an end that was not a success."""
    program = plan.launch.program
    if code == 128 + installed.SIGILL:
        console.print_error(installed.illegal_instruction(plan.receipt, program))
    elif group and (kills := group.oom_kills()):
        assert plan.limit is not None
        console.print_error(
            LaunchError(
                f"{program} needed more memory than its limit of {plan.limit.size:,} bytes",
                evidence=[f"the kernel ended {kills} process(es) for it"],
                hint="give a larger --memory-limit, a smaller --ctx or a smaller --cache-size",
            )
        )
    elif (watch and not watch.ready and code < 128) or code - 128 in _CRASHES:
        name = _name(code)
        text = activation.read_log(log).splitlines()
        when = " before it was ready" if watch and not watch.ready else ""
        console.print_error(
            LaunchError(
                f"{program} ended with {name}{when}",
                evidence=[f"its log: {line}" for line in text[-_LINES_SHOWN:]],
                hint=_CRASHES.get(code - 128, "what it printed above says why"),
            )
        )


def _name(code: int) -> str:
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"


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
