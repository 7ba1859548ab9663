"""Typed settings: default < user file < ./swapmoe.toml < SWAPMOE_* < command line.

Every value remembers its origin. A key nobody knows is an error, never silence.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swapmoe import sizes
from swapmoe.console import note
from swapmoe.errors import ConfigError

LOCAL_FILE = "swapmoe.toml"
ENV_PREFIX = "SWAPMOE_"
ENV_OTHER = tuple(
    f"{ENV_PREFIX}{name}"
    for name in ("CACHE_DIR", "CONFIG", "PATCHES_DIR", "UPSTREAM", "PATCHED_BIN", "BASE_BIN")
)
"""Variables other parts read; they are not settings."""

_TABLE_PREFIXES = ("SWAPMOE_BUILD_", "SWAPMOE_RUN_", "SWAPMOE_SERVE_")
_ON = ("1", "true", "on", "yes")
_OFF = ("0", "false", "off", "no")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class BuildSettings(_Model):
    """How llama.cpp is compiled."""

    jobs: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Parallel compilers; unset = what cores and memory allow."""
    portable: bool = False
    """Compile for any CPU of this architecture instead of this very one."""


class RunSettings(_Model):
    """How a model is run."""

    io: Literal["auto", "direct", "mmap", "fault"] = "auto"
    """How routed experts are read: into memory of the engine's own past the page cache (direct),
    through the mapped file with read-ahead (mmap), by page faults alone, or as sizes suggest."""
    io_threads: Annotated[int, Field(ge=0, le=256)] = 0
    """Threads that read experts in direct mode; 0 = the engine's default."""
    prefetch: bool = False
    """Ask for the experts of the next layers ahead, on one background thread."""
    fixation: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Keep the experts chosen in one pass for this many passes; 0 = off. Changes the answers."""
    keep_recent: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Experts per layer that stay in memory after use; 0 = no limit."""
    cache_size: Annotated[int, Field(ge=0, le=sizes.LARGEST)] = 0
    """Memory for routed experts; written as 512 (MiB), 1.5G or 2GB; 0 = no limit, in direct mode
    what memory allows."""
    ctx: Annotated[int, Field(ge=0, le=2**31 - 1)] = 4096
    """Context size in tokens; 0 = what the model was trained with."""
    n_predict: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """Most tokens to generate; unset or -1 = until the model ends or the context is full."""
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Compute threads; unset = llama.cpp's choice."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None
    """Sampling seed; unset = random."""
    memory_limit: Annotated[int, Field(ge=0, le=sizes.LARGEST)] = 0
    """Memory the program may use, page cache included; a size, 0 = no limit. Linux only."""


class ServeSettings(_Model):
    """Where the server listens."""

    host: Annotated[str, Field(min_length=1, pattern=r"^\S+$")] = "127.0.0.1"
    """Address to listen on, or a socket file ending in .sock; 0.0.0.0 opens it to the network."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """TCP port to listen on; 0 = any that is free, said at the start."""
    start_timeout: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seconds after which a server that is not ready is ended; 0 = never."""


class Settings(_Model):
    """All settings."""

    pin: str | None = None
    """Tag of the upstream pin; unset = the newest one in the series."""
    source: str = "auto"
    """Where llama.cpp comes from: auto, git, archive, or a path."""
    build: BuildSettings = BuildSettings()
    run: RunSettings = RunSettings()
    serve: ServeSettings = ServeSettings()


SIZES = ("run.cache_size", "run.memory_limit")
"""Settings that are written with units and kept in bytes."""


@dataclass(frozen=True)
class Loaded:
    """Settings, and for each dotted name where its value came from."""

    settings: Settings
    origins: Mapping[str, str]


@dataclass(frozen=True)
class _Source:
    """Values of one place, by dotted name; `where` says where each is written."""

    values: Mapping[str, object]
    where: Mapping[str, str]


def setting_names() -> dict[str, object]:
    """Every setting's dotted name with its default, in the order of the classes."""
    names: dict[str, object] = {}
    defaults = Settings()
    for name in Settings.model_fields:
        value = getattr(defaults, name)
        if isinstance(value, BaseModel):
            names.update({f"{name}.{key}": getattr(value, key) for key in type(value).model_fields})
        else:
            names[name] = value
    return names


def load(
    flags: Mapping[str, object] | None = None,
    *,
    config_file: Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Loaded:
    """Merge all sources. `flags` are dotted names; a None value means "not given".

    `config_file` (or SWAPMOE_CONFIG) replaces the user's and the local file, and must exist.
    Raises `ConfigError` that lists every problem found in every source.
    """
    env = os.environ if env is None else env
    problems: list[str] = []
    sources = [_read_file(path, problems) for path in _files(config_file, cwd, env)]
    sources.append(_read_env(env, problems))
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    sources.append(_Source(given, dict.fromkeys(given, "command line")))
    values: dict[str, object] = {}
    origins = dict.fromkeys(setting_names(), "default")
    for source in (_in_bytes(source, problems) for source in sources):
        problems += _check(source)
        values.update(source.values)
        origins.update(source.where)
    if problems:
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError(
            f"{count} in the configuration",
            evidence=problems,
            hint="correct what is listed; `swapmoe config show` lists every setting",
        )
    return Loaded(Settings.model_validate(_nest(values)), origins)


def rows(loaded: Loaded) -> list[tuple[str, object, str]]:
    """(dotted name, value, origin) for each setting."""
    found: list[tuple[str, object, str]] = []
    for name in setting_names():
        value: Any = loaded.settings
        for part in name.split("."):
            value = getattr(value, part)
        found.append((name, value, loaded.origins[name]))
    return found


def _files(config_file: Path | None, cwd: Path | None, env: Mapping[str, str]) -> list[Path]:
    named = config_file or (Path(env["SWAPMOE_CONFIG"]) if env.get("SWAPMOE_CONFIG") else None)
    if named is not None:
        named = named.expanduser()
        if not named.is_file():
            raise ConfigError(
                f"no such configuration file: {named}",
                evidence=["named by --config or SWAPMOE_CONFIG"],
                hint="create it or stop naming it",
            )
        return [named]
    user = platformdirs.user_config_path("swapmoe", appauthor=False) / "config.toml"
    return [path for path in (user, (cwd or Path.cwd()) / LOCAL_FILE) if path.is_file()]


def _read_file(path: Path, problems: list[str]) -> _Source:
    try:
        text = path.read_bytes().decode("utf-8-sig")
        data = tomllib.loads(text)
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return _Source({}, {})
    except UnicodeDecodeError:
        problems.append(f"{path}: is not UTF-8 text")
        return _Source({}, {})
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, absurd numbers, deep nesting
        problems.append(f"{path}: not valid TOML: {error}")
        return _Source({}, {})
    lines = _key_lines(text)
    values: dict[str, object] = {}
    where: dict[str, str] = {}
    for written, value in _flatten(data):
        place = f"{path}:{lines.get(written, 1)}"
        name = written.replace("-", "_")
        if name in _tables() and not isinstance(value, dict):
            problems.append(f"{place}: {written} is a table: write [{written}]")
        elif name not in setting_names():
            problems.append(f"{place}: {_unknown(written, value)}")
        elif name in values:
            problems.append(f"{place}: {written} is set twice (- and _ mean the same)")
        else:
            values[name] = value
            where[name] = place
    return _Source(values, where)


def _tables() -> set[str]:
    return {name.split(".")[0] for name in setting_names() if "." in name}


def _flatten(data: Mapping[str, object]) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, value in data.items():
        if isinstance(value, dict) and key.replace("-", "_") in _tables():
            found += [(f"{key}.{inner}", item) for inner, item in value.items()]
        else:
            found.append((key, value))
    return found


def _key_lines(text: str) -> dict[str, int]:
    """Dotted name as written -> line number (plain keys; a key in quotes counts as plain)."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([^\[\]#]+?)\s*\]", line):
            table = header[1].replace('"', "").replace("'", "").replace(" ", "")
            lines.setdefault(table, number)
            table += "."
        elif key := re.match(r"\s*([\w.\"'-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=", line):
            name = key[1].replace('"', "").replace("'", "").replace(" ", "")
            lines.setdefault(table + name, number)
    return lines


def _unknown(written: str, value: object) -> str:
    kind = "table" if isinstance(value, dict) else "key"
    names = list(setting_names())
    name = written.replace("-", "_")
    leaf = name.rsplit(".", 1)[-1]
    for known in names:
        if known.rsplit(".", 1)[-1] == leaf:
            table = known.rpartition(".")[0]
            place = f"in table [{table}]" if table else "at the top, before any table"
            return f"{written} is in the wrong place: {leaf} belongs {place}"
    near = difflib.get_close_matches(name, [*names, *_tables()], n=1, cutoff=0.5)
    if not near:
        by_leaf = {known.rsplit(".", 1)[-1]: known for known in names}
        near = [by_leaf[hit] for hit in difflib.get_close_matches(leaf, by_leaf, n=1)]
    return f"unknown {kind} {written}" + (f"; did you mean {near[0]}?" if near else "")


def _read_env(env: Mapping[str, str], problems: list[str]) -> _Source:
    variables = {ENV_PREFIX + name.replace(".", "_").upper(): name for name in setting_names()}
    values: dict[str, object] = {}
    where: dict[str, str] = {}
    for variable, text in env.items():
        if not variable.startswith(ENV_PREFIX) or variable in ENV_OTHER:
            continue
        if variable not in variables:
            known = [name.removeprefix(ENV_PREFIX) for name in variables]
            near = difflib.get_close_matches(
                variable.removeprefix(ENV_PREFIX), known, n=1, cutoff=0.7
            )
            if near or variable.startswith(_TABLE_PREFIXES):
                guess = f"; did you mean {ENV_PREFIX}{near[0]}?" if near else ""
                problems.append(f"environment variable {variable} is unknown{guess}")
            else:
                note(f"environment variable {variable} has no meaning for swapmoe")
            continue
        name = variables[variable]
        values[name] = _from_text(text, setting_names()[name], name)
        where[name] = f"environment variable {variable}"
    return _Source(values, where)


def _from_text(text: str, default: object, name: str) -> object:
    """An environment value as the type its setting has; left as text when it does not fit."""
    if isinstance(default, bool):
        if text.lower() in _ON + _OFF:
            return text.lower() in _ON
        return text
    wants_text = isinstance(default, str) or name == "pin" or name in SIZES
    if not wants_text and re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        return int(text)
    return text


def _in_bytes(source: _Source, problems: list[str]) -> _Source:
    """The same values with every size parsed; a size that cannot be is reported and left out."""
    values = dict(source.values)
    for name in SIZES:
        if name not in values:
            continue
        try:
            values[name] = sizes.parse(values[name])
        except ValueError as error:
            value = values.pop(name)
            problems.append(f"{source.where[name]}: {name} = {value!r}: {error}")
    return _Source(values, source.where)


def _nest(values: Mapping[str, object]) -> dict[str, object]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        table, _, key = name.rpartition(".")
        (nested.setdefault(table, {}) if table else nested)[key] = value
    return nested


def _check(source: _Source) -> list[str]:
    try:
        Settings.model_validate(_nest(source.values))
    except ValidationError as error:
        problems = []
        for item in error.errors(include_url=False):
            name = ".".join(str(part) for part in item["loc"])
            name = next((known for known in setting_names() if name.startswith(known)), name)
            place = source.where.get(name, "command line")
            problems.append(f"{place}: {name} = {item['input']!r}: {item['msg']}")
        return problems
    return []
