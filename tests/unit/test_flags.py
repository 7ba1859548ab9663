"""The flag table: what it writes, what it refuses, and what a program's help says about it."""

import os
from pathlib import Path

import pytest

from swapmoe import binhelp
from swapmoe.config import RunSettings, ServeSettings
from swapmoe.errors import LaunchError, UsageError
from swapmoe.flag_table import CLI, SERVER, TABLE, Launch, rows
from swapmoe.flags import (
    Given,
    build_argv,
    check_extra,
    contradicting_env,
    options_in,
    written_rows,
)
from tests.support.fake_tools import FakeTools, help_text

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
--version                               show version and build info
-t,    --threads N                      number of CPU threads (default: -1)
                                        (env: LLAMA_ARG_THREADS)
-lm,   --load-mode MODE                 model loading mode (default: mmap)
                                        - none: no special loading mode
                                        --not-an-option: it is indented
-ctxcp, --ctx-checkpoints, --swa-checkpoints N
                                        max number of checkpoints
-dio,  --direct-io, -ndio, --no-direct-io
                                        DEPRECATED
-fit,  --fit [on|off]                   whether to adjust
-dr,   --docker-repo [<repo>/]<model>[:quant]
                                        Docker repository
--control-vector-layer-range START END
                                        two values
"""


def argv_for(extra: tuple[str, ...] = (), serve: bool = False, **changes: object) -> list[str]:
    settings = RunSettings.model_validate(changes.pop("settings", {}))
    prompt, listen = (None, ServeSettings()) if serve else ("hello", None)
    launch = Launch(Path("m.gguf"), prompt, settings, serve=listen)
    given = options_in(extra, lambda name: name in ("--temp", "--in-prefix"))
    return build_argv(written_rows(launch, given), extra)


def test_the_whole_command() -> None:
    assert argv_for() == [
        *("--model", "m.gguf", "--prompt", "hello", "--no-escape", "--single-turn"),
        *("--expert-streaming", "--expert-io", "auto", "--load-mode", "mmap", "--device", "none"),
        *("--fit", "off", "--no-warmup", "--ctx-size", "4096", "--cache-ram", "0"),
        *("--ctx-checkpoints", "2"),
    ]


def test_the_whole_server_command() -> None:
    assert argv_for(serve=True) == [
        *("--model", "m.gguf", "--host", "127.0.0.1", "--port", "8080", "--expert-streaming"),
        *("--expert-io", "auto", "--load-mode", "mmap", "--device", "none", "--fit", "off"),
        *("--no-warmup", "--ctx-size", "4096", "--parallel", "1", "--cache-ram", "0"),
        *("--ctx-checkpoints", "2", "--metrics"),
    ]


@pytest.mark.parametrize("serve", [False, True])
def test_the_engine_gets_what_is_set(serve: bool) -> None:
    settings = {"prefetch": True, "fixation": 4, "keep_recent": 8, "cache_size": (3 << 20) + 5}
    text = " ".join(argv_for(serve=serve, settings=settings))
    assert "--expert-cache-size 3 --expert-keep-recent 8 --expert-fixation 4" in text
    assert "--expert-prefetch" in text
    assert "--expert-cache" not in " ".join(argv_for(serve=serve))


def test_what_is_set_is_written_and_the_rest_is_not() -> None:
    argv = argv_for(settings={"threads": 2, "seed": 0, "n_predict": -1, "io": "fault"})
    text = " ".join(argv)
    assert "--threads 2" in text
    assert "--seed 0" in text
    assert "--predict -1" in text
    assert "--expert-io fault" in text


def test_a_chat_has_no_prompt_and_does_not_end_by_itself() -> None:
    argv = build_argv(written_rows(Launch(Path("m.gguf"), None, RunSettings()), ()), ())
    assert not {"--prompt", "--single-turn", "--no-escape"} & set(argv)


def test_verbose_and_plain() -> None:
    launch = Launch(Path("m.gguf"), "x", RunSettings(), verbose=True, plain=True)
    argv = build_argv(written_rows(launch, ()), ())
    assert argv[-3:] == ["--verbosity", "4", "--simple-io"]


def test_d10_extra_arguments_come_last_and_verbatim() -> None:
    extra = ("--temp", "0", "--x=", "", "a, let's b", "C:\\Users\\Me\\my t.jinja", ";rm", "\n")
    assert tuple(argv_for(extra)[-len(extra) :]) == extra


@pytest.mark.parametrize(
    ("extra", "gone"),
    [
        ("-ctxcp", "--ctx-checkpoints"),
        ("--warmup", "--no-warmup"),
        ("--escape", "--no-escape"),
        ("-cram", "--cache-ram"),
        ("--fit", "--fit"),
    ],
)
def test_some_rows_yield(extra: str, gone: str) -> None:
    argv = argv_for((extra, "100"))
    assert argv.count(gone) == (1 if extra == gone else 0)
    assert argv[-2:] == [extra, "100"]


@pytest.mark.parametrize(
    "word",
    [
        *("--model", "-m", "-hf", "--load-mode", "-lm", "--mmap", "--no-mmap", "--mlock", "-dio"),
        *("--expert-io", "--expert-streaming", "-p", "--file", "-st", "-ngl", "--gpu-layers"),
        *("-c", "--ctx-size", "-n", "-t", "--seed", "--server-base", "--expert-log"),
        *("--expert-cache-size", "--expert-prefetch", "--gpt-oss-20b-default"),
    ],
)
@pytest.mark.parametrize("form", ["{}", "{}=x", "{} x"])
def test_d10_managed_options_are_refused_in_every_form(word: str, form: str) -> None:
    extra = form.format(word).split()
    with pytest.raises(UsageError, match="cannot be passed on") as caught:
        check_extra(options_in(extra, lambda _: False), CLI)
    assert caught.value.evidence[0].startswith(f"{word}: ")


@pytest.mark.parametrize(
    "word", ["-m", "--host", "--port", "--models-dir", "--models-preset", "--expert-fixation"]
)
def test_the_servers_own_options_are_refused(word: str) -> None:
    with pytest.raises(UsageError, match="llama-server") as caught:
        check_extra([Given(word)], SERVER)
    assert caught.value.hint == "swapmoe serve --help"
    assert "{" not in caught.value.evidence[0]
    check_extra([Given("-np", "4"), Given("-n", "4")], SERVER)


def test_underscores_do_not_hide_an_option() -> None:
    with pytest.raises(UsageError):
        check_extra(options_in(["--load_mode", "none"], lambda _: False), CLI)


def test_a_value_is_not_an_option() -> None:
    extra = ["--in-prefix", "-m", "--temp", "-1", "--x=--y", "--last"]
    assert options_in(extra, lambda _: True) == [
        Given("--in-prefix", "-m"),
        Given("--temp", "-1"),
        Given("--x", "--y"),
        Given("--last"),
    ]


def test_no_spelling_belongs_to_two_rows() -> None:
    names = [name for row in TABLE for name in (row.option, *row.others)]
    assert len(names) == len(set(names))
    assert all(row.yields or row.instead for row in TABLE)


def test_contradicting_variables() -> None:
    env = {
        "LLAMA_ARG_NO_MMAP": "1",
        "LLAMA_ARG_MLOCK": "1",
        "LLAMA_ARG_EXPERT_IO": "fault",
        "LLAMA_ARG_N_GPU_LAYERS": "99",
        "LLAMA_ARG_N_PREDICT": "5",
        "LLAMA_ARG_TOP_K": "1",
        "LLAMA_ARG_EXPERT_PREFETCH": "1",
        "LLAMA_ARG_N_PARALLEL": "4",
        "PATH": "/bin",
    }
    assert contradicting_env(env, argv_for(), CLI) == [
        "LLAMA_ARG_EXPERT_IO",
        "LLAMA_ARG_EXPERT_PREFETCH",
        "LLAMA_ARG_MLOCK",
        "LLAMA_ARG_NO_MMAP",
        "LLAMA_ARG_N_GPU_LAYERS",
    ]
    argv = argv_for(settings={"n_predict": 3})
    assert "LLAMA_ARG_N_PREDICT" in contradicting_env(env, argv, CLI)
    assert "LLAMA_ARG_N_PARALLEL" in contradicting_env(env, argv_for(serve=True), SERVER)


def test_help_is_parsed_by_blocks() -> None:
    options = binhelp.parse(HELP)
    assert {name for name, value in options.items() if value} == {
        *("-t", "--threads", "-lm", "--load-mode", "-ctxcp", "--ctx-checkpoints"),
        *("--swa-checkpoints", "-fit", "--fit", "-dr", "--docker-repo"),
        "--control-vector-layer-range",
    }
    assert options["--no-direct-io"] is False
    assert options["--usage"] is False
    assert "--not-an-option" not in options


@pytest.fixture
def tools(tmp_path: Path) -> FakeTools:
    return FakeTools(tmp_path / "tools")


def test_help_is_asked_once_per_binary(tools: FakeTools) -> None:
    program = tools.folder / "llama"
    assert binhelp.check(program, rows(CLI)).conclusive
    assert binhelp.check(program, rows(CLI)).takes_value("--model")
    assert len(tools.calls("llama")) == 1
    os.utime(program, ns=(1, 1))
    binhelp.check(program, rows(CLI))
    assert len(tools.calls("llama")) == 2


def test_an_option_the_binary_lacks_is_named(tools: FakeTools) -> None:
    tools.set(help=help_text(r.option for r in TABLE if r.option != "--load-mode"))
    with pytest.raises(LaunchError, match="1 of the options") as caught:
        binhelp.check(tools.folder / "llama", rows(CLI))
    assert "--load-mode" in caught.value.evidence[0]


@pytest.mark.parametrize("knobs", [{"help_exit": "SIGSEGV"}, {"help_exit": 1}, {"help": "hello"}])
def test_d01_an_inconclusive_help_is_not_an_absent_option(
    tools: FakeTools, knobs: dict[str, object]
) -> None:
    tools.set(**knobs)
    assert not binhelp.check(tools.folder / "llama", rows(CLI)).conclusive
    tools.set(help=help_text(row.option for row in TABLE), help_exit=0)
    assert binhelp.check(tools.folder / "llama", rows(CLI)).conclusive
