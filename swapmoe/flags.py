"""Reads a user's extra arguments and makes the argument list of a program from the flag table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from swapmoe.errors import UsageError
from swapmoe.flag_table import COMMANDS, Launch, Row, rows


@dataclass(frozen=True)
class Given:
    """An option among the extra arguments; `value` None when none follows it."""

    name: str
    value: str | None = None


def option_name(word: str) -> str:
    """An argument as llama.cpp sees an option's name: `--a_b=c` is `--a-b`; "" for a value."""
    if not word.startswith("-") or word in ("-", "--"):
        return ""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def options_in(extra: Sequence[str], takes_value: Callable[[str], bool]) -> list[Given]:
    """The options among extra arguments; an option's value is not mistaken for one."""
    found: list[Given] = []
    words = iter(extra)
    for word in words:
        name = option_name(word)
        if not name:
            continue
        _, separator, value = word.partition("=")
        if separator:
            found.append(Given(name, value))
        else:
            found.append(Given(name, next(words, None) if takes_value(name) else None))
    return found


def check_extra(given: Iterable[Given], program: str) -> None:
    """Refuse options that belong to swapmoe. Raises `UsageError` with a reason for each."""
    command = COMMANDS[program]
    owners = {
        name: row for row in rows(program) if not row.yields for name in (row.option, *row.others)
    }
    refused = [
        f"{option.name}: {owners[option.name].instead.format(command)}"
        for option in given
        if option.name in owners
    ]
    if refused:
        raise UsageError(
            f"{len(refused)} of the arguments after -- cannot be passed on to {program}",
            evidence=refused,
            hint=f"{command} --help",
        )


def written_rows(
    launch: Launch, given: Iterable[Given], knows: Callable[[str], bool] = lambda _: True
) -> list[tuple[Row, Sequence[str]]]:
    """The rows that a launch writes, with their words; `knows` tells which options there are."""
    names = {option.name for option in given}
    written: list[tuple[Row, Sequence[str]]] = []
    for row in rows(launch.program):
        values = row.render(launch)
        if values is not None and not (row.yields and names & {row.option, *row.others}):
            written.append((row, _spelled(row, values, knows)))
    return written


def _spelled(row: Row, values: Sequence[str], knows: Callable[[str], bool]) -> Sequence[str]:
    if not knows(row.option):
        for option, words in row.fallbacks:
            if knows(option):
                return words
    return [row.option, *values]


def build_argv(written: Iterable[tuple[Row, Sequence[str]]], extra: Sequence[str]) -> list[str]:
    """The program's arguments: what was written, then `extra`, verbatim."""
    return [*(word for _, words in written for word in words), *extra]


def contradicting_env(env: Mapping[str, str], argv: Sequence[str], program: str) -> list[str]:
    """Variables in `env` that set what `argv` sets already, its opposite, or what swapmoe owns."""
    written = set(argv)
    names = {
        variable
        for row in rows(program)
        if row.owned or row.fallbacks or row.option in written
        for part in row.env
        for variable in (f"LLAMA_ARG_{part}", f"LLAMA_ARG_NO_{part}")
    }
    return sorted(names & set(env))
