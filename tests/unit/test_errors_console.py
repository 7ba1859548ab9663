"""Exit codes are unique; messages have three parts; stdout holds results only."""

import json

import pytest

from swapmoe import console, errors
from swapmoe.errors import ApplyError, SwapmoeError


def all_errors() -> list[type[SwapmoeError]]:
    return [value for value in vars(errors).values() if isinstance(value, type)
            and issubclass(value, SwapmoeError)]  # fmt: skip


def test_exit_codes_are_unique_and_the_promised_ones() -> None:
    codes = {kind.__name__: kind.exit_code for kind in all_errors()}
    assert codes == {
        "SwapmoeError": 1,
        "UsageError": 2,
        "ConfigError": 3,
        "ToolError": 4,
        "UpstreamError": 5,
        "SeriesError": 6,
        "ApplyError": 7,
        "BuildError": 8,
        "ModelError": 9,
        "LaunchError": 10,
        "DriftFound": 20,
    }


def test_an_error_prints_what_evidence_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    error = ApplyError("x.patch failed", evidence=["at [red]line[/red] 3", "a\nb"], hint="do :+1:")
    console.print_error(error)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "error: x.patch failed\n  at [red]line[/red] 3\n  a\n  b\nhint: do :+1:\n"
    )


def test_long_lines_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("word " * 60)
    console.note("n")
    assert capsys.readouterr().err == "word " * 60 + "\nnote: n\n"


def test_json_goes_to_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    console.emit_json({"path": "naïve [x]"})
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"path": "naïve [x]"}
    assert "naïve" in printed.out
    assert printed.err == ""


def test_progress_without_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("loading [1]", 10) as advance:
        advance(5)
    assert capsys.readouterr().err == "loading [1] ...\n"


def test_progress_on_a_terminal_draws_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    recorded = Console(force_terminal=True, width=100, record=True, markup=False)
    with monkeypatch.context() as patched:
        patched.setattr(console, "err", lambda: recorded)
        with console.progress("loading", 10, unit="steps") as advance:
            advance(10)
    assert "10/10" in recorded.export_text()
