"""One overlay for several pins: a file ``overlay`` that names another pin's folder."""

from pathlib import Path

import pytest

from swapmoe import apply, cli, lint, pins, series
from swapmoe.errors import SeriesError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin
from tests.support.upstream import OVERLAY, TAG, Mini


@pytest.fixture
def second(mini: Mini, pin: Pin) -> Path:
    """A second pin of the same commit that shares the overlay of the first."""
    folder = mini.patches / "b11"
    folder.mkdir()
    for file in pin.series_dir.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "overlay").write_text(f"../{TAG}/overlay\n")
    return folder


def test_digest_and_tree_are_those_of_a_copy(second: Path, pin: Pin, checkout: GitRepo) -> None:
    shared = series.read(second)
    assert shared.digest == series.read(pin.series_dir).digest == pin.manifest.series.digest
    assert [file.path for file in shared.overlay] == [OVERLAY]
    assert lint.lint(second, checkout, "HEAD").findings == ()
    apply.apply(pins.load("b11"), checkout)
    assert checkout.tree_of("HEAD") == pin.manifest.series.tree


def test_refresh_covers_every_pin_that_shares_the_overlay(
    second: Path, mini: Mini, pin: Pin, checkout: GitRepo
) -> None:
    (pin.series_dir / "overlay" / OVERLAY).write_text("// newer\n")
    assert cli.main(["patch", "refresh"]) == 0
    for folder in (second, pin.series_dir):
        assert lint.lint(folder, checkout, "HEAD").findings == ()


@pytest.mark.parametrize(
    "text",
    ["", "../b10", "../../b10/overlay", "../b10/../b10/overlay", "/tmp/overlay", "../b99/overlay",
     "../b12/overlay", "../b11/overlay", "overlay", "../b10/overlay\n../b10/overlay"],
)  # fmt: skip
def test_other_contents_are_refused(text: str, second: Path, pin: Pin, tmp_path: Path) -> None:
    (second.parent / "b12").symlink_to(pin.series_dir)
    (second / "overlay").write_text(text)
    with pytest.raises(SeriesError, match="does not name an overlay folder"):
        series.read(second)
    found = lint.lint(second).findings
    assert [finding.rule for finding in found if finding.where == "overlay"] == ["P111"]
