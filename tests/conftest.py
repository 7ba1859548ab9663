"""Isolation: no test sees this user's settings, caches or git variables."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swapmoe import console, gitrepo, pins
from tests.support import upstream
from tests.support.upstream import Mini

TESTS = Path(__file__).parent
FAKES = TESTS / "support" / "fakes"
_NO_ISOLATION = ("e2e", "upstream")


@pytest.fixture(autouse=True)
def _isolated(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """Own HOME, caches and terminal settings; folders that need the real cache are left out."""
    if request.path.relative_to(TESTS).parts[0] not in _NO_ISOLATION:
        for name in list(os.environ):
            if name.startswith(("GIT_", "SWAPMOE_", "XDG_", "LLAMA_", "PIP_")):
                monkeypatch.delenv(name)
        home = tmp_path / "home"
        home.mkdir()
        for name in ("HOME", "USERPROFILE", "LOCALAPPDATA", "APPDATA"):
            monkeypatch.setenv(name, str(home))
        monkeypatch.setenv("SWAPMOE_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setenv("TERM", "dumb")
    console.out.cache_clear()
    console.err.cache_clear()
    yield
    console.out.cache_clear()
    console.err.cache_clear()


@pytest.fixture(autouse=True)
def _no_real_programs(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A unit test may start only programs it wrote itself or that lie in tests/support/fakes."""
    if request.path.relative_to(TESTS).parts[0] != "unit":
        return
    allowed = (FAKES.resolve(), tmp_path_factory.getbasetemp().resolve())
    real = subprocess.Popen

    class Guarded(real):  # type: ignore[misc,valid-type]
        def __init__(self, args: Any, *more: Any, **options: Any) -> None:
            words = [args] if isinstance(args, str | Path) else [str(word) for word in args]
            path = (options.get("env") or os.environ).get("PATH")
            found = shutil.which(words[0], path=path)
            candidates = [found, *(words[1:2] if found == sys.executable else [])]
            inside = any(
                Path(candidate).resolve().is_relative_to(folder)
                for candidate in candidates
                if candidate
                for folder in allowed
            )
            if found and not inside:
                raise AssertionError(f"a unit test must not start {words[0]}")
            super().__init__(args, *more, **options)

    monkeypatch.setattr(subprocess, "Popen", Guarded)

    def refuse(*args: Any, **_options: Any) -> None:
        raise AssertionError(f"a unit test must not start {args[:1]}")

    for name in ("system", "execv", "execve", "execvp", "execvpe", "posix_spawn"):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, refuse)


@pytest.fixture(scope="session")
def mini_template() -> Iterator[Mini]:
    """The mini-upstream, built once."""
    with tempfile.TemporaryDirectory(prefix="swapmoe-mini-") as folder:
        yield upstream.make(Path(folder, "mini"))


@pytest.fixture
def mini(mini_template: Mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mini:
    """A copy of the mini-upstream; its series is the default pin and its clone the source."""
    copied = upstream.copy(mini_template, tmp_path / "mini")
    monkeypatch.setenv("SWAPMOE_PATCHES_DIR", str(copied.patches))
    monkeypatch.setenv("SWAPMOE_SOURCE", str(copied.clone))
    return copied


@pytest.fixture
def pin(mini: Mini) -> pins.Pin:
    """The default pin of the mini-upstream."""
    return pins.load()


@pytest.fixture
def checkout(mini: Mini, pin: pins.Pin, tmp_path: Path) -> gitrepo.GitRepo:
    """A hand-made checkout of the pin, not the tool's own, with a branch."""
    path = tmp_path / "hand made"
    repo = gitrepo.init(path)
    repo.run("fetch", "--quiet", mini.clone.as_uri(), pin.commit)
    repo.run("checkout", "--quiet", "-b", "work", "FETCH_HEAD")
    return repo
