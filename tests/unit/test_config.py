"""Settings: every source, every kind of mistake, and where values come from."""

import json
from pathlib import Path

import platformdirs
import pytest

from swapmoe import config
from swapmoe.cli import main
from swapmoe.errors import ConfigError


def load(text: str, tmp_path: Path, **env: str) -> config.Loaded:
    path = tmp_path / "named.toml"
    path.write_text(text, encoding="utf-8")
    return config.load(config_file=path, env=env)


def problems(text: str, tmp_path: Path, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path, **env)
    return list(caught.value.evidence)


def test_later_sources_win_and_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setattr(platformdirs, "user_config_path", lambda *_, **__: user)
    (user / "config.toml").write_text("[run]\nctx = 1\nthreads = 1\nseed = 1\nn-predict = 1\n")
    (tmp_path / "swapmoe.toml").write_text("[run]\nthreads = 2\nseed = 2\nn_predict = 2\n")
    env = {"SWAPMOE_RUN_SEED": "3", "SWAPMOE_RUN_N_PREDICT": "3"}
    loaded = config.load({"run.n_predict": 4, "run.io": None}, cwd=tmp_path, env=env)
    assert loaded.settings.run == config.RunSettings(ctx=1, threads=2, seed=3, n_predict=4)
    assert loaded.origins["run.ctx"] == f"{user / 'config.toml'}:2"
    assert loaded.origins["run.threads"] == f"{tmp_path / 'swapmoe.toml'}:2"
    assert loaded.origins["run.seed"] == "environment variable SWAPMOE_RUN_SEED"
    assert loaded.origins["run.n_predict"] == "command line"
    assert loaded.origins["run.io"] == "default"


@pytest.mark.parametrize("text", ["", "\ufeff", "# nothing\n", "[run]\n", "\r\n[run]\r\n"])
def test_an_empty_file_changes_nothing(tmp_path: Path, text: str) -> None:
    assert load(text, tmp_path).settings == config.Settings()


def test_hyphen_and_underscore_are_one(tmp_path: Path) -> None:
    assert load("[run]\nn-predict = 7\n", tmp_path).settings.run.n_predict == 7
    assert load("run.n_predict = 7\n", tmp_path).settings.run.n_predict == 7
    assert "set twice" in problems("[run]\nn-predict = 7\nn_predict = 7\n", tmp_path)[0]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[run]\nthread = 4\n", 2, "did you mean run.threads?"),
        ("\n\nctx = 4\n", 3, "belongs in table [run]"),
        ("[build]\nctx = 4\n", 2, "belongs in table [run]"),
        ("[run]\npin = 'b1'\n", 2, "belongs at the top"),
        ("[rum]\nctx = 4\n", 1, "did you mean run?"),
        ("run = 4\n", 1, "write [run]"),
        ("[run]\nctx = '4'\n", 2, "valid integer"),
        ("[run]\nctx = 4.0\n", 2, "valid integer"),
        ("[run]\nctx = true\n", 2, "valid integer"),
        ("[run]\nthreads = 0\n", 2, "greater than or equal to 1"),
        ("[run]\nctx = -4\n", 2, "greater than or equal to 0"),
        ("[run]\nio = 'fast'\n", 2, "'auto', 'direct', 'mmap' or 'fault'"),
        ("[build]\nportable = 1\n", 2, "valid boolean"),
        ("[build]\njobs = [1]\n", 2, "valid integer"),
    ],
)
def test_d08_a_mistake_is_named_with_file_and_line(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    (problem,) = problems(text, tmp_path)
    assert problem.startswith(f"{tmp_path / 'named.toml'}:{line}: ")
    assert says in problem


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    found = problems("ctx = 1\n[run]\nseed = -1\n", tmp_path, SWAPMOE_BUILD_JOBS="many")
    assert len(found) == 3


@pytest.mark.parametrize(
    "text",
    ["[run]\nctx = 1\n[run]\n", "ctx = ", "a = [" + "[" * 5000, f"[run]\nctx = {'9' * 5000}\n"],
)
def test_text_that_is_not_toml(tmp_path: Path, text: str) -> None:
    assert problems(text, tmp_path)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError) as caught:
        config.load(config_file=path, env={})
    assert "not UTF-8" in caught.value.evidence[0]


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such configuration file"):
        config.load(config_file=tmp_path / "none.toml", env={})
    with pytest.raises(ConfigError, match="no such configuration file"):
        config.load(env={"SWAPMOE_CONFIG": str(tmp_path / "none.toml")})


class TestEnvironment:
    def test_values_have_types(self) -> None:
        env = {"SWAPMOE_BUILD_PORTABLE": "on", "SWAPMOE_RUN_CTX": "8", "SWAPMOE_PIN": "10235"}
        settings = config.load(env=env).settings
        assert settings.build.portable is True
        assert settings.run.ctx == 8
        assert settings.pin == "10235"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("SWAPMOE_RUN_CTX", "4k"),
            ("SWAPMOE_RUN_CTX", ""),
            ("SWAPMOE_RUN_CTX", "٤"),
            ("SWAPMOE_BUILD_PORTABLE", "maybe"),
            ("SWAPMOE_RUN_IO", "fast"),
        ],
    )
    def test_a_bad_value_names_the_variable(self, name: str, value: str) -> None:
        with pytest.raises(ConfigError) as caught:
            config.load(env={name: value})
        assert name in caught.value.evidence[0]

    def test_a_misspelt_name_is_an_error(self) -> None:
        for name in ("SWAPMOE_RUN_CXT", "SWAPMOE_SORCE", "SWAPMOE_BUILD_X"):
            with pytest.raises(ConfigError, match="one problem"):
                config.load(env={name: "1"})

    def test_other_names_are_not(self, capsys: pytest.CaptureFixture[str]) -> None:
        config.load(env={"SWAPMOE_CACHE_DIR": "/x", "SWAPMOE_PATCHED_BIN": "/x"})
        assert capsys.readouterr().err == ""
        config.load(env={"SWAPMOE_ELSE": "1"})
        assert "SWAPMOE_ELSE has no meaning" in capsys.readouterr().err


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[run]\nio = 'mmap'\n")
    assert main(["config", "show", "--config", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"run.io = mmap   [{path}:2]" in text
    assert "build.portable = false   [default]" in text
    assert main(["config", "show", "--json", "--config", str(path)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["run.io"] == {"value": "mmap", "origin": f"{path}:2"}


def test_a_config_error_exits_3(tmp_path: Path) -> None:
    assert main(["config", "show", "--config", str(tmp_path / "none")]) == 3
