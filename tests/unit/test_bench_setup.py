"""Models of the benchmarks come and go in the cache folder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from swapmoe import bench_setup, models, paths
from swapmoe.errors import LaunchError


@pytest.fixture
def presets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three small presets."""
    tiny = models.PRESETS["tiny"]
    names = ["one", "two", "three"]
    for seed, name in enumerate(names, 5):
        monkeypatch.setitem(models.PRESETS, name, replace(tiny, seed=seed))
    return names


def free(monkeypatch: pytest.MonkeyPatch, left: Callable[[], int]) -> None:
    real = bench_setup.shutil.disk_usage

    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=left(), total=real(path).total)

    monkeypatch.setattr("swapmoe.bench_setup.shutil.disk_usage", usage)


def kept() -> set[str]:
    return {path.name.split("-")[0] for path in (paths.cache_dir() / "models").glob("*.gguf")}


def test_models_are_written_once_and_kept_while_there_is_room(presets: list[str]) -> None:
    first = bench_setup.model("one")
    before = first.stat().st_mtime_ns
    for name in presets:
        bench_setup.model(name, disposable=presets)
    assert first.stat().st_mtime_ns == before
    assert kept() == set(presets)


def test_others_make_room_one_by_one(presets: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in presets[:2]:
        bench_setup.model(name)
    free(monkeypatch, lambda: 10**10 if len(kept()) < 2 else 2 * models.DISK_RESERVE)
    bench_setup.model("three", disposable=["one", "two"])
    assert kept() == {"two", "three"}
    bench_setup.remove("three")
    assert kept() == {"two"}


def test_a_model_that_is_there_costs_nothing(
    presets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in presets[:2]:
        bench_setup.model(name)
    free(monkeypatch, lambda: 0)
    bench_setup.model("one", disposable=["two"])
    assert kept() == {"one", "two"}


def test_without_a_build_there_is_nothing_to_measure() -> None:
    for build in (bench_setup.patched_build, bench_setup.unpatched_build):
        with pytest.raises(LaunchError, match="nothing is built yet"):
            build()


def test_machine_is_one_line() -> None:
    assert "cores" in bench_setup.machine()
    assert "\n" not in bench_setup.machine()
