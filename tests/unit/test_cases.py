"""The table of reported cases names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = (ROOT / "docs/cases.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", CASES)
LISTED = re.findall(r"^\| ([ACD]\d\d) \|.*\| (.+?) \|$", CASES, re.MULTILINE)


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_it_exists(file: str, name: str) -> None:
    assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_each_case_has_a_test() -> None:
    assert len(LISTED) == 27
    assert all("`tests/" in tests for _, tests in LISTED)
