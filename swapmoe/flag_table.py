"""What swapmoe writes on the command lines of llama-cli and llama-server: one row per option."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from swapmoe import sizes
from swapmoe.config import RunSettings, ServeSettings

CLI = "llama-cli"
SERVER = "llama-server"
COMMANDS = {CLI: "swapmoe run", SERVER: "swapmoe serve"}

ENGINE_VERBOSITY = "4"
"""The programs' verbosity at which the engine's own lines are shown."""
LOG_OPTION = "--expert-log"
LOG_VARIABLE = "LLAMA_ARG_EXPERT_LOG"
"""How a program is told to write the library's lines to a file as well, at any verbosity."""


@dataclass(frozen=True)
class Sizing:
    """What the plan decided: MiB for saved prompts, context checkpoints; None = the default."""

    prompt_cache: int = 0
    checkpoints: int = 2
    ubatch: int | None = None
    cache_type: str | None = None


@dataclass(frozen=True)
class Launch:
    """What one start is asked to do; a server when `serve` is given, else llama-cli.

    `prompt` None = chat on the terminal. `plain` = llama-cli writes to no terminal.
    """

    model: Path
    prompt: str | None
    settings: RunSettings
    verbose: bool = False
    plain: bool = False
    serve: ServeSettings | None = None
    sizing: Sizing = Sizing()

    @property
    def program(self) -> str:
        """Name of the program to start."""
        return CLI if self.serve is None else SERVER


Render = Callable[[Launch], Sequence[str] | None]


@dataclass(frozen=True)
class Row:
    """One option that swapmoe writes.

    `render` gives the option's values ([] for a bare switch), None when the option is left out.
    `others` are further spellings, and options that would do the same or the opposite; `env` are
    the variables behind all of them. When `yields`, the user's extra arguments may say otherwise
    and this row is left out; else they are refused with `instead` ({} is the swapmoe command).
    The variables are kept from the child when the option is written, or always when `owned`.
    `fallbacks` are (an option, the words that say the same) for programs without the first one.
    """

    setting: str
    option: str
    render: Render
    others: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    yields: bool = False
    instead: str = ""
    owned: bool = False
    fallbacks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    programs: tuple[str, ...] = (CLI, SERVER)


def _constant(*values: str) -> Render:
    return lambda _launch: values


def _never(_launch: Launch) -> Sequence[str] | None:
    return None


def _setting(name: str) -> Render:
    def render(launch: Launch) -> Sequence[str] | None:
        value = getattr(launch.settings, name)
        return None if value is None else [str(value)]

    return render


def _sizing(name: str) -> Render:
    def render(launch: Launch) -> Sequence[str] | None:
        value = getattr(launch.sizing, name)
        return None if value is None else [str(value)]

    return render


def _limit(name: str) -> Render:
    """A count; 0 = left out."""
    return lambda launch: [str(value)] if (value := getattr(launch.settings, name)) else None


def _cache_size(launch: Launch) -> Sequence[str] | None:
    size = launch.settings.cache_size
    return [str(sizes.whole_mib(size))] if size else None


def _with_prompt(launch: Launch) -> Sequence[str] | None:
    return None if launch.prompt is None else []


def _serve(name: str) -> Render:
    return lambda launch: [str(getattr(launch.serve, name))]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_DOWNLOADED_MODELS = _names(
    "--embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default "
    "--fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default "
    "--gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default"
)

TABLE = (
    Row(
        "model",
        "--model",
        lambda launch: [str(launch.model)],
        _names(
            "-m -mu --model-url -hf -hfr --hf-repo -hff --hf-file -dr --docker-repo --server-base"
        )
        + _DOWNLOADED_MODELS,
        _names("MODEL MODEL_URL HF_REPO HF_FILE DOCKER_REPO"),
        instead="the model is what `{} -m` names; it is checked before the start",
    ),
    Row(
        "prompt",
        "--prompt",
        lambda launch: None if launch.prompt is None else [launch.prompt],
        _names("-p -f --file -bf --binary-file"),
        instead="give the prompt with `{} -p`",
        programs=(CLI,),
    ),
    Row(
        "prompt (taken as it is, no \\n escapes)",
        "--no-escape",
        _with_prompt,
        _names("-e --escape"),
        yields=True,
        programs=(CLI,),
    ),
    Row(
        "prompt (one answer, then the end)",
        "--single-turn",
        _with_prompt,
        _names("-st -i --interactive -if --interactive-first"),
        instead="with -p it is always on; use `{} --chat` for a conversation",
        programs=(CLI,),
    ),
    Row(
        "serve.host",
        "--host",
        _serve("host"),
        env=_names("HOST"),
        instead="use `{} --host`",
        programs=(SERVER,),
    ),
    Row(
        "serve.port",
        "--port",
        _serve("port"),
        env=_names("PORT"),
        instead="use `{} --port`",
        programs=(SERVER,),
    ),
    Row(
        "one model, no router",
        "--models-dir",
        _never,
        _names("--models-preset --models-max --models-autoload --no-models-autoload"),
        _names("MODELS_DIR MODELS_PRESET MODELS_MAX MODELS_AUTOLOAD"),
        instead="a router's children would not get the expert options; `{}` serves one model",
        owned=True,
        programs=(SERVER,),
    ),
    Row(
        "streaming",
        "--expert-streaming",
        _constant(),
        _names("--no-expert-streaming"),
        _names("EXPERT_STREAMING"),
        instead="`{}` always streams; start the program yourself to run without",
        owned=True,
    ),
    Row(
        "run.io",
        "--expert-io",
        _setting("io"),
        env=_names("EXPERT_IO"),
        instead="use `{} --io`",
        owned=True,
    ),
    Row(
        "run.io_threads",
        "--expert-io-threads",
        _limit("io_threads"),
        env=_names("EXPERT_IO_THREADS"),
        instead="set run.io_threads",
        owned=True,
    ),
    Row(
        "run.cache_size",
        "--expert-cache-size",
        _cache_size,
        env=_names("EXPERT_CACHE_SIZE"),
        instead="use `{} --cache-size`",
        owned=True,
    ),
    Row(
        "run.keep_recent",
        "--expert-keep-recent",
        _limit("keep_recent"),
        env=_names("EXPERT_KEEP_RECENT"),
        instead="use `{} --keep-recent`",
        owned=True,
    ),
    Row(
        "run.fixation",
        "--expert-fixation",
        _limit("fixation"),
        env=_names("EXPERT_FIXATION"),
        instead="use `{} --fixation`",
        owned=True,
    ),
    Row(
        "run.prefetch",
        "--expert-prefetch",
        lambda launch: [] if launch.settings.prefetch else None,
        _names("--no-expert-prefetch"),
        _names("EXPERT_PREFETCH"),
        instead="use `{} --prefetch`",
        owned=True,
    ),
    Row(
        "check of the start",
        LOG_OPTION,
        _never,
        env=_names("EXPERT_LOG"),
        instead="`{}` reads it to see whether experts are streamed; -v shows the lines",
        owned=True,
    ),
    Row(
        "streaming (experts are read through the mapping)",
        "--load-mode",
        _constant("mmap"),
        _names("-lm --mmap --no-mmap --mlock -dio --direct-io -ndio --no-direct-io"),
        _names("LOAD_MODE MMAP MLOCK DIO"),
        instead="streaming needs the file mapped and not locked, so this is fixed to mmap",
        fallbacks=(("--mmap", ("--mmap",)), ("--no-mmap", ())),
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
        instead="use `{} --ctx`",
    ),
    Row(
        "run.n_predict",
        "--predict",
        _setting("n_predict"),
        _names("-n --n-predict"),
        _names("N_PREDICT"),
        instead="use `{} -n`",
        programs=(CLI,),
    ),
    Row(
        "run.threads",
        "--threads",
        _setting("threads"),
        _names("-t"),
        _names("THREADS"),
        instead="use `{} --threads`",
    ),
    Row(
        "run.seed",
        "--seed",
        _setting("seed"),
        _names("-s"),
        instead="use `{} --seed`",
        programs=(CLI,),
    ),
    Row(
        "streaming (one slot: others would ask for other experts)",
        "--parallel",
        _constant("1"),
        _names("-np"),
        _names("N_PARALLEL"),
        yields=True,
        programs=(SERVER,),
    ),
    Row(
        "plan (not 8 GiB of saved prompts)",
        "--cache-ram",
        lambda launch: [str(launch.sizing.prompt_cache if launch.serve else 0)],
        _names("-cram"),
        _names("CACHE_RAM"),
        yields=True,
    ),
    Row(
        "plan (not 32 context checkpoints)",
        "--ctx-checkpoints",
        _sizing("checkpoints"),
        _names("-ctxcp --swa-checkpoints"),
        _names("CTX_CHECKPOINTS"),
        yields=True,
    ),
    Row(
        "plan (tokens of a prompt that are computed at once)",
        "--ubatch-size",
        _sizing("ubatch"),
        _names("-ub"),
        _names("UBATCH"),
        yields=True,
    ),
    Row(
        "plan (smaller keys)",
        "--cache-type-k",
        _sizing("cache_type"),
        _names("-ctk"),
        _names("CACHE_TYPE_K"),
        yields=True,
    ),
    Row(
        "plan (smaller values)",
        "--cache-type-v",
        _sizing("cache_type"),
        _names("-ctv"),
        _names("CACHE_TYPE_V"),
        yields=True,
    ),
    Row(
        "the engine's counters on /metrics",
        "--metrics",
        _constant(),
        env=_names("ENDPOINT_METRICS"),
        yields=True,
        programs=(SERVER,),
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
        programs=(CLI,),
    ),
)


def rows(program: str) -> tuple[Row, ...]:
    """The rows of one program."""
    return tuple(row for row in TABLE if program in row.programs)
