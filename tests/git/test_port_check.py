"""``port check`` on synthetic upstreams: the right verdict on each hook (C04, C13)."""

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from swapmoe import apply, cli, pins, port_check, port_hooks, port_pick, series
from swapmoe.errors import ToolError, UpstreamError, UsageError
from swapmoe.gitrepo import GitRepo, Result
from swapmoe.pins import Pin
from swapmoe.port_hooks import Hook
from swapmoe.port_text import Texts
from tests.git.test_hostile import HOSTILE
from tests.support.ports import LATER, Change, both, later, replace, write
from tests.support.upstream import FILES, OVERLAY, Mini, mail

LOADER, GRAPH = FILES["src/loader.cpp"], FILES["src/graph.cpp"]
OPEN, REOPEN, CLOSE = LOADER.split("\n\n")[1:]
LINES = "".join(f"int added_{number};\n" for number in range(22))


def rename(old: str, new: str) -> Change:
    def change(top: Path) -> None:
        (top / new).parent.mkdir(exist_ok=True)
        (top / old).rename(top / new)

    return change


def loader(*functions: str) -> Change:
    return write("src/loader.cpp", "\n\n".join(['#include "loader.h"', *functions]))


def upstreamed(name: str, after: str, inserted: str) -> Change:
    return replace(name, after, after + inserted)


SKIP = ("src/loader.cpp", "loader::reopen")
FREE = ("src/loader.cpp", "loader::close")
OBSERVE = ("src/graph.cpp", "build_moe")
SOURCES = ("src/CMakeLists.txt", "add_library(llama")
ALL = (SKIP, FREE, OBSERVE, SOURCES)

# name: the change, the verdicts that differ from "unchanged", a part of a reason
CASES: dict[str, tuple[Change, dict[tuple[str, str], str], str]] = {
    "same": (lambda top: None, {}, ""),
    "another file": (replace("CMakeLists.txt", "llama", "llama2"), {}, ""),
    "lines above": (
        replace("src/graph.cpp", '#include "graph.h"\n', f'#include "graph.h"\n{LINES}'),
        {OBSERVE: "offset"},
        "",
    ),
    "context changed": (
        replace("src/graph.cpp", "ids = top_k(logits)", "ids = top_k(logits, 1)"),
        {OBSERVE: "conflict"},
        "upstream changed the same place",
    ),
    "context changed two lines away": (
        replace("src/graph.cpp", "logits = gate(ctx)", "logits = gate(ctx, 1)"),
        {OBSERVE: "merged"},
        "the lines around it changed",
    ),
    "renamed with lines added": (
        both(
            rename("src/graph.cpp", "src/graphs/moe.cpp"),
            replace("src/graphs/moe.cpp", '#include "graph.h"\n', '#include "graph.h"\n\nint x;\n'),
        ),
        {OBSERVE: "merged"},
        "the file is src/graphs/moe.cpp now",
    ),
    "deleted file": (
        lambda top: (top / "src/graph.cpp").unlink(),
        {OBSERVE: "gone"},
        "the file is gone",
    ),
    "look-alike above": (
        loader(REOPEN.replace("reopen", "first"), OPEN, REOPEN, CLOSE),
        {SKIP: "offset", FREE: "offset"},
        "",
    ),
    "the function goes, its look-alike stays": (
        loader(OPEN, CLOSE),
        {SKIP: "gone", FREE: "offset"},
        "the function is gone",
    ),
    "renamed function": (
        replace("src/loader.cpp", "loader::reopen", "loader::open_again"),
        {SKIP: "gone", FREE: "merged"},
        "the function is gone",
    ),
    "moved function": (
        loader(REOPEN, OPEN, CLOSE),
        {SKIP: "conflict", FREE: "offset"},
        "",
    ),
    "already merged": (
        upstreamed(
            "src/graph.cpp",
            "    tensor * ids = top_k(logits);\n",
            "    ids = llama_expert_observe(ctx, ids);\n",
        ),
        {OBSERVE: "upstreamed"},
        "",
    ),
    "already merged, and more": (
        both(
            upstreamed(
                "src/graph.cpp",
                "    tensor * ids = top_k(logits);\n",
                "    ids = llama_expert_observe(ctx, ids);\n    log(ids);\n",
            ),
            replace("src/graph.cpp", '#include "graph.h"', '#include "graph.h"\n#include "x.h"'),
        ),
        {OBSERVE: "upstreamed"},
        "",
    ),
    "whitespace only": (
        write("src/graph.cpp", GRAPH.replace("    ", "\t")),
        {OBSERVE: "conflict"},
        "upstream changed only blanks here",
    ),
    "CRLF": (
        write("src/graph.cpp", GRAPH.replace("\n", "\r\n")),
        {OBSERVE: "conflict"},
        "CRLF line endings",
    ),
    "overlay file upstream": (write(OVERLAY, "int theirs;\n"), {}, ""),
}  # fmt: skip


def verdicts(hooks: tuple[Hook, ...]) -> dict[tuple[str, str], str]:
    return {(hook.file, hook.function): hook.verdict for hook in hooks}


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str, mini: Mini, pin: Pin) -> None:
    change, expected, reason = CASES[name]
    later(mini, change)
    report = port_check.check(pin, LATER, "auto")
    assert verdicts(report.hooks) == dict.fromkeys(ALL, "unchanged") | expected
    assert reason in "; ".join(hook.why for hook in report.drifted)
    dirty = name == "overlay file upstream"
    assert report.problems == ((f"overlay file exists upstream now: {OVERLAY}",) if dirty else ())
    assert report.clean == (not dirty and set(expected.values()) <= {"offset"})
    for hook in report.hooks:
        if hook.verdict in ("unchanged", "offset", "merged"):
            assert hook.landed == hook.function


BODY = "".join(f"    step_{letter}();\n" for letter in "abcdef")
TWINS = f"void first() {{\n{BODY}}}\n\nvoid second() {{\n{BODY}}}\n"


@pytest.fixture
def twins(mini: Mini, pin: Pin) -> Pin:
    """A pin whose hook sits in the second of two functions with the same text."""
    commit = later(mini, write("src/twins.cpp", TWINS), "b15")
    repo = GitRepo(mini.clone)
    repo.run("checkout", "--quiet", "--detach", commit)
    hooked = "step_c();\n    llama_expert_step();\n"
    (mini.clone / "src/twins.cpp").write_text(f"{hooked}".join(TWINS.rsplit("step_c();\n", 1)))
    diff = repo.run("diff", "--full-index").out.decode()
    repo.run("reset", "--quiet", "--hard")
    folder = mini.patches / "b15"
    folder.mkdir()
    (folder / "graph-step.patch").write_text(
        mail("graph", "step", "Hook: src/twins.cpp: second", diff)
    )
    (folder / "series").write_text("graph-step.patch\n")
    apply.refresh(folder, pins.new_upstream("b15", commit, None), repo, commit)
    return pins.load("b15")


def second(change: Callable[[str], str], tail: str = "") -> Change:
    first, _, body = TWINS.partition("void second")
    return write("src/twins.cpp", f"{first}{change('void second' + body)}{tail}")


@pytest.mark.parametrize(
    ("body", "verdict", "why"),
    [
        (second(lambda text: text.replace("b()", "b(1)")), "merged",
         "a strict apply would put it in first"),
        (second(lambda text: text.replace("c()", "c(1)")), "conflict",
         "a strict apply would put it in first"),
        (second(lambda text: text.replace("second", "third"), "\nvoid second() {\n}\n"),
         "conflict", "lands in third"),
        (second(lambda text: text.replace("second", "third")), "gone", "the function is gone"),
        (second(lambda text: text.replace("f()", "f(1)")), "merged",
         "a strict apply would put it in first"),
        (second(lambda text: "//\n" + text), "offset", ""),
    ],
)  # fmt: skip
def test_a_clean_apply_in_the_wrong_function_is_found(
    body: Change, verdict: str, why: str, mini: Mini, twins: Pin
) -> None:
    later(mini, both(write("src/twins.cpp", TWINS), body))
    (hook,) = port_check.check(twins, LATER, "auto").hooks
    assert (hook.function, hook.verdict) == ("second", verdict)
    assert why in hook.why
    if verdict in ("merged", "offset"):
        assert hook.landed == "second"


def test_plain_git_is_wrong_there(mini: Mini, twins: Pin) -> None:
    later(mini, second(lambda text: text.replace("b()", "b(1)")))
    repo = GitRepo(mini.clone)
    repo.run("checkout", "--quiet", "--detach", LATER)
    repo.run("apply", twins.series_dir / "graph-step.patch")
    assert "llama_expert" in (mini.clone / "src/twins.cpp").read_text().split("void second")[0]


def test_a_result_that_loses_upstream_lines_is_a_conflict(
    mini: Mini, pin: Pin, checkout: GitRepo
) -> None:
    """A rebase that was clean and deleted upstream code has happened to others (C13)."""
    with checkout.scratch() as scratch:
        steps = port_pick.pin_steps(scratch, "HEAD", series.read(pin.series_dir))
        step = next(step for step in steps if "src/graph.cpp" in step.before)

        def blob(text: str) -> str:
            return scratch.run("hash-object", "-w", "--stdin", stdin=text.encode()).text

        target = GRAPH.replace("gate(ctx);", "gate(ctx);\n    norm(logits);")
        hook = "top_k(logits);\n    ids = llama_expert_observe(ctx, ids);"
        good = target.replace("top_k(logits);", hook)
        for text, verdict in (
            (good, "offset"),
            (good.replace("    norm(logits);\n", ""), "conflict"),
        ):
            tried = port_pick.Step(step, {"src/graph.cpp": blob(target)})
            tried.merged = tried.strict = {"src/graph.cpp": blob(text)}
            tried.strict_start = tried.start
            (found,) = port_hooks.judge(Texts(scratch), tried, "src/graph.cpp", "src/graph.cpp")
            assert found.verdict == verdict
    assert found.why == "would delete 1 upstream lines: norm(logits);"


def test_a_hook_that_no_trailer_names_is_noted(mini: Mini, twins: Pin) -> None:
    file = twins.series_dir / "graph-step.patch"
    file.write_text(file.read_text().replace("twins.cpp: second", "twins.cpp: other"))
    facts, repo = twins.manifest.upstream, GitRepo(mini.clone)
    apply.refresh(twins.series_dir, facts, repo, twins.commit)
    later(mini, write("src/twins.cpp", TWINS))
    report = port_check.check(pins.load("b15"), LATER, "auto")
    assert report.notes == ("no Hook: trailer of graph-step.patch names src/twins.cpp second",)


def test_commits_in_the_files_of_drifted_hooks_are_listed(mini: Mini, pin: Pin) -> None:
    later(mini, CASES["context changed"][0])
    assert [commit.split(" ", 1)[1] for commit in port_check.check(pin, LATER, "auto").commits] == [
        f"later: {LATER}"
    ]
    later(mini, CASES["lines above"][0])
    assert port_check.check(pin, LATER, "auto").commits == ()


def test_what_upstream_has_now_is_noted(mini: Mini, pin: Pin) -> None:
    arguments = '{"-lzm", "--lazy-mode"}, {"--moe-cache-slots"}\n'
    pattern = 'LLM_FFN_EXPS_REGEX = "\\\\.ffn_(up|down|gate|mid)_(ch|)exps";\n'
    later(mini, both(write("common/arg.cpp", arguments), write("common/common.h", pattern)))
    report = port_check.check(pin, LATER, "auto")
    expected = ("no older load switches", "lazily read tensors", "streamed experts")
    assert report.equivalents == expected
    assert "expert tensors this tool does not know: mid" in report.notes[-1]
    assert report.clean


def test_a_conflict_shows_both_texts(mini: Mini, pin: Pin) -> None:
    later(mini, CASES["context changed"][0])
    hook = next(h for h in port_check.check(pin, LATER, "auto").hooks if h.verdict == "conflict")
    assert (hook.file, hook.hunk, hook.function) == ("src/graph.cpp", 1, "build_moe")
    assert any("top_k(logits, 1)" in line for line in hook.upstream)
    assert any("llama_expert_observe" in line for line in hook.ours)


@pytest.mark.parametrize(
    "name", ["apply.whitespace=fix", "core.autocrlf=true", "diff.noprefix", "everything"]
)
def test_user_settings_change_no_verdict(
    name: str, mini: Mini, pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(mini, CASES["renamed with lines added"][0])
    settings = HOSTILE[name] + "[merge]\n\trenames = false\n\tconflictStyle = diff3\n"
    (Path.home() / ".gitconfig").write_text(settings)
    (mini.clone / ".git/config").write_text((mini.clone / ".git/config").read_text() + settings)
    monkeypatch.setenv("GIT_DIR", str(mini.clone / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(mini.clone / "nowhere"))
    monkeypatch.setenv("GIT_MERGE_VERBOSITY", "5")
    report = port_check.check(pin, LATER, "auto")
    assert verdicts(report.hooks)[OBSERVE] == "merged"


def state(top: Path) -> tuple[str, ...]:
    commands = (["rev-parse", "HEAD"], ["status", "--porcelain"], ["stash", "list"])
    more = (["worktree", "list"], ["for-each-ref"], ["diff", "--cached"])
    run = subprocess.run
    return tuple(
        run(["git", *words], cwd=top, capture_output=True, text=True, check=True).stdout
        for words in (*commands, *more)
    )


def test_the_users_clone_stays_as_it_is(mini: Mini, pin: Pin) -> None:
    later(mini, CASES["context changed"][0])
    top = mini.clone
    (top / "CMakeLists.txt").write_text("stashed\n")
    GitRepo(top).run("stash", "push", "--quiet")
    (top / "convert.py").write_text("staged\n")
    GitRepo(top).run("add", "convert.py")
    (top / "src/graph.cpp").write_text("edited\n")
    (top / "left.rej").write_text("x")
    before = state(top)
    port_check.check(pin, LATER, "auto")
    port_check.check(pin, str(top), "auto")
    assert state(top) == before


@pytest.mark.parametrize("depth", [1, 2])
def test_shallow_clones_that_may_lack_the_pin(
    depth: int, mini: Mini, pin: Pin, tmp_path: Path
) -> None:
    commit = later(mini, CASES["renamed with lines added"][0])
    GitRepo(mini.clone).run("branch", "next", commit)
    shallow = tmp_path / "shallow"
    url = mini.clone.as_uri()
    clone = ["git", "clone", "-q", f"--depth={depth}", "--branch", "next", url, str(shallow)]
    subprocess.run(clone, check=True, capture_output=True)
    for to, source in ((commit, str(shallow)), (str(shallow), "auto")):
        report = port_check.check(pin, to, source)
        assert verdicts(report.hooks)[OBSERVE] == "merged"


def test_each_kind_of_target(mini: Mini, pin: Pin, tmp_path: Path) -> None:
    commit = later(mini, CASES["lines above"][0])
    later(mini, lambda top: None, "b9")
    plain = tmp_path / "plain"
    GitRepo(mini.clone).run("worktree", "add", "--quiet", "--detach", plain, commit)
    (plain / ".git").unlink()
    (plain / "build").mkdir()
    (plain / "build/x.o").write_text("x")
    for to in (LATER, "latest", commit, str(plain)):
        report = port_check.check(pin, to, "auto")
        assert report.counts == {"unchanged": 3, "offset": 1}
    assert port_check.check(pin, str(mini.archive), "auto").counts == {"unchanged": 4}
    assert port_check.check(pin, "latest", "auto").target.name == LATER


def test_a_git_without_merge_tree_is_named(
    mini: Mini, pin: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(mini, CASES["context changed"][0])
    real = GitRepo.run

    def old_git(repo: GitRepo, *args: str, **options: Any) -> Result:
        if args[0] == "merge-tree":
            return Result(129, b"", "usage: git merge-tree <base-tree> <branch1> <branch2>\n")
        return real(repo, *args, **options)

    monkeypatch.setattr(GitRepo, "run", old_git)
    with pytest.raises(ToolError, match="merge without a work tree") as caught:
        port_check.check(pin, LATER, "auto")
    assert "2.38" in caught.value.hint


@pytest.mark.parametrize(
    ("to", "kind", "text"),
    [
        ("221f0f635", UsageError, "abbreviated commit"),
        ("nowhere", UsageError, "no such llama.cpp"),
        ("b999", UpstreamError, "git fetch failed"),
        ("1" * 40, UpstreamError, "git fetch failed"),
    ],
)
def test_targets_that_cannot_be_had(
    to: str, kind: type[Exception], text: str, mini: Mini, pin: Pin
) -> None:
    with pytest.raises(kind, match=text):
        port_check.check(pin, to, "auto")


Printed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def swapmoe(capsys: pytest.CaptureFixture[str]) -> Printed:
    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(argv)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_exit_codes_and_formats(mini: Mini, swapmoe: Printed, tmp_path: Path) -> None:
    later(mini, CASES["lines above"][0])
    code, out, _ = swapmoe("port", "check", "--to", LATER)
    assert (code, out.splitlines()[0]) == (0, "b10 -> b20: 3 unchanged, 1 offset")
    later(mini, both(CASES["context changed"][0], CASES["renamed function"][0]), "b30")
    junit = tmp_path / "port.xml"
    code, out, err = swapmoe("port", "check", "--to", "b30", "--json", "--junit", str(junit))
    found = json.loads(out)
    assert (code, found["clean"], found["counts"]["conflict"]) == (20, False, 1)
    assert "hint: swapmoe port start --to b30" in err
    suite = ElementTree.parse(junit).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "3")
    code, out, _ = swapmoe("port", "check", "--to", "b30", "--annotate")
    assert code == 20
    assert out.count("::error ") == 2
    assert out.count("::warning ") == 1
    assert "file=patches/b10/graph-observe-top-k.patch,title=conflict%3A src/graph.cpp on" in out
    code, out, _ = swapmoe("port", "check", "--to", "b30")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert swapmoe("port", "check", "--to", "b30", "--json", "--annotate")[0] == 2
    assert swapmoe("port", "check", "--to", "b31")[0] == 5


def test_nothing_is_left_in_the_temporary_folder(
    mini: Mini, pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    later(mini, CASES["context changed"][0])
    port_check.check(pin, LATER, "auto")
    assert list(scratch.iterdir()) == []
