"""Tables and ratios of runs."""

from pathlib import Path
from typing import Any

from swapmoe.comparison import Run, as_markdown, as_text, put_section, ratios, table


def run(mode: str, decode: float | None, **changes: Any) -> Run:
    facts: dict[str, Any] = {
        "outcome": "ok",
        "wall": 10.0,
        "user": 3.0,
        "system": 1.0,
        "read": 2_000_000_000,
        "major_faults": 5,
        "peak": 3_000_000_000,
        "prompt": 1.5,
    }
    return Run(mode=mode, decode=decode, **(facts | changes))


KILLED = run("unpatched", None, outcome="killed (OOM)", prompt=None)
RUNS = [run("fault", 1.0), run("mmap", 1.5), KILLED, run("mmap", 2.0), run("fault", 1.0), KILLED]


def test_medians_and_worst_outcome() -> None:
    rows = {row[0]: row[1:] for row in table(RUNS)}
    assert rows["mmap"] == ["1.75", "1.50", "3.0", "1.0", "2.00", "3.00", "ok 2/2"]
    assert rows["unpatched"][0] == "-"
    assert rows["unpatched"][-1] == "killed (OOM) 2/2"


def test_a_failed_run_is_not_in_the_median() -> None:
    runs = [run("mmap", 2.0), run("mmap", 9.0, outcome="timed out")]
    assert table(runs)[1][1] == "2.00"
    assert table(runs)[1][-1] == "timed out 1/2"


def test_ratios_pair_the_rounds() -> None:
    assert ratios(RUNS, "fault") == ["decode: mmap / fault: 1.750 (1.500 to 2.000 in 2 rounds)"]


def test_ratios_without_the_reference() -> None:
    assert ratios([run("mmap", 1.0)], "fault") == []


def test_ratios_of_prompts() -> None:
    runs = [run("a", None, prompt=2.0), run("b", None, prompt=3.0)]
    assert ratios(runs, "a", "prompt") == ["prompt: b / a: 1.500 (1.500 to 1.500 in 1 rounds)"]


def test_text_fits_a_terminal() -> None:
    runs = [run("unpatched-no-repack", 10.25), KILLED, run("mmap", None, peak=None)]
    lines = as_text(table(runs))
    assert max(map(len, lines)) <= 80
    assert lines[0].index("tok/s") + len("tok/s") == lines[1].index("10.25") + len("10.25")


def test_sections_are_replaced_where_they_are(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n")
    for number in ("1", "2"):
        put_section(page, "a", as_markdown("a", [f"fact {number} \\d"], table(RUNS), ["note"]))
        put_section(page, "b", as_markdown("b", ["fact"], table(RUNS), []))
    text = page.read_text()
    assert text.startswith("# Title\n\n<!-- begin a -->")
    assert text.count("begin a") == text.count("begin b") == 1
    assert "fact 2 \\d" in text
    assert "fact 1" not in text
