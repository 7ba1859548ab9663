"""Words before and after `--`: never split, never guessed; old switches are understood."""

from pathlib import Path

import pytest

from swapmoe import binhelp
from swapmoe.binhelp import Help
from swapmoe.cli import main
from swapmoe.config import RunSettings
from swapmoe.errors import UsageError
from swapmoe.flag_table import CLI, TABLE, Launch, rows
from swapmoe.flags import Given, build_argv, written_rows
from swapmoe.legacy import take_mapping
from swapmoe.receipts import Receipt
from tests.support.building import Workshop


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-ngl", "99"], "arguments of llama-cli go after --"),
        (["-ctk", "q8_0"], "arguments of llama-cli go after --"),
        (["-nkvo"], "-n and its value are two words"),
        (["--temp", "0"], "arguments of llama-cli go after --"),
        (["--cache-sise", "5"], "did you mean --cache-size?"),
        (["world"], "needs quotes"),
    ],
)
def test_words_that_belong_after_the_dashes(
    built: Receipt, model: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert main(["run", "-m", str(model), "-p", "hello", *argv]) == 2
    err = capsys.readouterr().err
    assert f"error: {argv[0]} is not an argument of swapmoe run" in err
    assert said in err


def test_values_that_look_like_options_are_values(
    shop: Workshop, built: Receipt, model: Path
) -> None:
    argv = ["-p", "-ngl", "-n4", "--seed=7", "--", "--temp", "-1", "--temp=0"]
    assert main(["run", "-m", str(model), *argv]) == 0
    call = shop.tools.calls("llama-cli")[-1]
    assert call[3] == "-ngl"
    assert call[call.index("--predict") + 1] == "4"
    assert call[-3:] == ["--temp", "-1", "--temp=0"]


def test_an_unknown_option_after_the_dashes_is_refused_with_the_nearest(
    shop: Workshop, built: Receipt, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "-m", str(model), "-p", "x", "--", "--tempp", "0"]) == 2
    assert "--tempp; did you mean --temp?" in capsys.readouterr().err
    assert all(call == ["--help"] for call in shop.tools.calls("llama-cli"))
    binhelp.check_known(Help({}, conclusive=False), [Given("--tempp")], Path("x"))


@pytest.mark.parametrize(
    ("extra", "kept", "taken"),
    [
        (["--mmap", "--temp", "0"], ["--temp", "0"], ["--mmap"]),
        (["--no-mmap", "--mmap"], [], ["--no-mmap", "--mmap"]),
        (["--load-mode", "mmap", "x"], ["x"], ["--load-mode mmap"]),
        (["-lm=mmap"], [], ["-lm=mmap"]),
        (["-ndio"], [], ["-ndio"]),
        (["--no-mmap"], ["--no-mmap"], []),
        (["--mmap", "--mlock"], ["--mmap", "--mlock"], []),
        (["--load-mode", "mmap+mlock"], ["--load-mode", "mmap+mlock"], []),
        (["--in-prefix", "--mmap"], ["--in-prefix", "--mmap"], []),
        (["-lm"], ["-lm"], []),
    ],
)
def test_d01_old_switches(extra: list[str], kept: list[str], taken: list[str]) -> None:
    assert take_mapping(extra, lambda name: name == "--in-prefix") == (tuple(kept), taken)


def test_an_old_switch_for_the_mapping_is_noted(
    shop: Workshop, built: Receipt, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "-m", str(model), "-p", "x", "--", "--mmap", "--temp", "0"]) == 0
    assert "--mmap is what streaming does anyway; it is not passed on" in capsys.readouterr().err
    call = shop.tools.calls("llama-cli")[-1]
    assert "--mmap" not in call
    assert call.count("--load-mode") == 1


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (("--load-mode", "--mmap"), ["--load-mode", "mmap"]),
        (("--mmap", "--no-mmap"), ["--mmap"]),
        (("--no-mmap",), []),
    ],
)
def test_d01_the_load_mode_is_spelled_as_the_program_knows_it(
    known: tuple[str, ...], words: list[str]
) -> None:
    others = [row.option for row in TABLE if row.option != "--load-mode"]
    found = Help(dict.fromkeys([*others, *known], False), conclusive=True)
    assert binhelp.missing_options(found, rows(CLI)) == []
    launch = Launch(Path("m.gguf"), "x", RunSettings())
    argv = build_argv(written_rows(launch, (), found.knows), ())
    assert [word for word in argv if "mmap" in word or "load" in word] == words


def test_a_program_without_any_of_them_is_refused() -> None:
    found = Help({row.option: False for row in TABLE if row.option != "--load-mode"}, True)
    assert binhelp.missing_options(found, rows(CLI))
    with pytest.raises(UsageError):
        binhelp.check_known(found, [Given("--load-mode")], Path("llama"))
