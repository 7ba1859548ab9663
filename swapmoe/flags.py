"""Settings as llama-cli options: one row per option, and the argument list they make."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swapmoe.config import RunSettings
from swapmoe.errors import UsageError

ENGINE_VERBOSITY = "4"
"""llama-cli's verbosity at which the engine's own lines are shown."""


@dataclass(frozen=True)
class Launch:
    """What one start of llama-cli is asked to do. `prompt` None = chat on the terminal."""

    model: Path
    prompt: str | None
    settings: RunSettings
    verbose: bool = False
    plain: bool = False


Render = Callable[[Launch], Sequence[str] | None]


@dataclass(frozen=True)
class Row:
    """One option of llama-cli that swapmoe writes.

    `render` gives the option's values ([] for a bare switch), None when the option is left out.
    `others` are further spellings, and options that would do the same or the opposite; `env` are
    the variables behind all of them. When `yields`, the user's extra arguments may say otherwise
    and this row is left out; else they are refused with `instead`.
    """

    setting: str
    option: str
    render: Render
    others: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    yields: bool = False
    instead: str = ""


def _constant(*values: str) -> Render:
    return lambda _launch: values


def _setting(name: str) -> Render:
    def render(launch: Launch) -> Sequence[str] | None:
        value = getattr(launch.settings, name)
        return None if value is None else [str(value)]

    return render


def _with_prompt(launch: Launch) -> Sequence[str] | None:
    return None if launch.prompt is None else []


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TABLE = (
    Row(
        "model",
        "--model",
        lambda launch: [str(launch.model)],
        _names(
            "-m -mu --model-url -hf -hfr --hf-repo -hff --hf-file -dr --docker-repo --server-base"
        ),
        _names("MODEL MODEL_URL HF_REPO HF_FILE DOCKER_REPO"),
        instead="the model is what `swapmoe run -m` names; it is checked before the start",
    ),
    Row(
        "prompt",
        "--prompt",
        lambda launch: None if launch.prompt is None else [launch.prompt],
        _names("-p -f --file -bf --binary-file"),
        instead="give the prompt with `swapmoe run -p`",
    ),
    Row(
        "prompt (taken as it is, no \\n escapes)",
        "--no-escape",
        _with_prompt,
        _names("-e --escape"),
        yields=True,
    ),
    Row(
        "prompt (one answer, then the end)",
        "--single-turn",
        _with_prompt,
        _names("-st -i --interactive -if --interactive-first"),
        instead="with -p it is always on; use `swapmoe run --chat` for a conversation",
    ),
    Row(
        "streaming",
        "--expert-streaming",
        _constant(),
        _names("--no-expert-streaming"),
        _names("EXPERT_STREAMING"),
        instead="`swapmoe run` always streams; start llama-cli yourself to run without",
    ),
    Row(
        "run.io",
        "--expert-io",
        _setting("io"),
        env=_names("EXPERT_IO"),
        instead="use `swapmoe run --io`",
    ),
    Row(
        "streaming (experts are read through the mapping)",
        "--load-mode",
        _constant("mmap"),
        _names("-lm --mmap --no-mmap --mlock -dio --direct-io -ndio --no-direct-io"),
        _names("LOAD_MODE MMAP MLOCK DIO"),
        instead="streaming needs the file mapped and not locked, so this is fixed to mmap",
    ),
    Row(
        "CPU build (no layer on a GPU)",
        "--device",
        _constant("none"),
        _names("-dev -ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg")
        + _names("--main-gpu --rpc"),
        _names("DEVICE N_GPU_LAYERS SPLIT_MODE TENSOR_SPLIT MAIN_GPU RPC"),
        instead="this is a CPU build; experts are streamed into CPU memory",
    ),
    Row(
        "streaming (no trial loads)",
        "--fit",
        _constant("off"),
        _names("-fit"),
        _names("FIT"),
        yields=True,
    ),
    Row("streaming (start at once)", "--no-warmup", _constant(), _names("--warmup"), yields=True),
    Row(
        "run.ctx",
        "--ctx-size",
        _setting("ctx"),
        _names("-c"),
        _names("CTX_SIZE"),
        instead="use `swapmoe run --ctx`",
    ),
    Row(
        "run.n_predict",
        "--predict",
        _setting("n_predict"),
        _names("-n --n-predict"),
        _names("N_PREDICT"),
        instead="use `swapmoe run -n`",
    ),
    Row(
        "run.threads",
        "--threads",
        _setting("threads"),
        _names("-t"),
        _names("THREADS"),
        instead="use `swapmoe run --threads`",
    ),
    Row(
        "run.seed",
        "--seed",
        _setting("seed"),
        _names("-s"),
        instead="use `swapmoe run --seed`",
    ),
    Row(
        "streaming (no 8 GiB prompt cache)",
        "--cache-ram",
        _constant("0"),
        _names("-cram"),
        _names("CACHE_RAM"),
        yields=True,
    ),
    Row(
        "--verbose",
        "--verbosity",
        lambda launch: [ENGINE_VERBOSITY] if launch.verbose else None,
        _names("-lv --log-verbosity -v --verbose --log-verbose"),
        _names("LOG_VERBOSITY"),
        yields=True,
    ),
    Row(
        "output not a terminal",
        "--simple-io",
        lambda launch: [] if launch.plain else None,
        yields=True,
    ),
)


def option_name(word: str) -> str:
    """An argument as llama.cpp sees an option's name: `--a_b=c` is `--a-b`; "" for a value."""
    if not word.startswith("-") or word in ("-", "--"):
        return ""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def options_in(extra: Sequence[str], takes_value: Callable[[str], bool]) -> list[str]:
    """The option names among extra arguments; an option's value is not mistaken for one."""
    names: list[str] = []
    words = iter(extra)
    for word in words:
        if name := option_name(word):
            names.append(name)
            if "=" not in word and takes_value(name):
                next(words, None)
    return names


def check_extra(names: Iterable[str]) -> None:
    """Refuse options that belong to swapmoe. Raises `UsageError` with a reason for each."""
    owners = {name: row for row in TABLE if not row.yields for name in (row.option, *row.others)}
    refused = [f"{name}: {owners[name].instead}" for name in names if name in owners]
    if refused:
        raise UsageError(
            f"{len(refused)} of the arguments after -- cannot be passed on to llama-cli",
            evidence=refused,
            hint="swapmoe run --help",
        )


def build_argv(launch: Launch, extra: Sequence[str], names: Iterable[str]) -> list[str]:
    """llama-cli's arguments. `names` are the options in `extra`, which comes last, verbatim."""
    given = set(names)
    argv: list[str] = []
    for row in TABLE:
        values = row.render(launch)
        if values is None or (row.yields and given & {row.option, *row.others}):
            continue
        argv += [row.option, *values]
    return [*argv, *extra]


def contradicting_env(env: Mapping[str, str], argv: Sequence[str]) -> list[str]:
    """Variables in `env` that set what `argv` sets already, or its opposite."""
    written = set(argv)
    names = {
        variable
        for row in TABLE
        if row.option in written
        for part in row.env
        for variable in (f"LLAMA_ARG_{part}", f"LLAMA_ARG_NO_{part}")
    }
    return sorted(names & set(env))
