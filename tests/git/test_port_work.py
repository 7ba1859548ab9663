"""``port start``, ``continue`` and ``finish`` on the mini-upstream."""

from pathlib import Path

import pytest

from swapmoe import lint, pins, port_finish, port_notes, port_store, port_target, port_work, series
from swapmoe.errors import SeriesError, UpstreamError, UsageError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin
from tests.support.ports import LATER, both, later, replace
from tests.support.upstream import OVERLAY, TAG, Mini, commit_all

HOOK = "    ids = llama_expert_observe(ctx, ids);\n"
CONFLICT = both(
    replace("src/graph.cpp", "ids = top_k(logits)", "ids = pick(logits)"),
    replace("src/graph.cpp", "return combine(ctx, ids)", "return combine(ctx, ids, 1)"),
    replace("src/loader.cpp", '#include "loader.h"\n', '#include "loader.h"\n#include "x.h"\n'),
)  # fmt: skip


def resolve(work: port_work.Work) -> None:
    """Keep upstream's side and put the call back in, as a person would."""
    file = work.path / "src/graph.cpp"
    text = file.read_text()
    assert "<<<<<<<" in text
    assert "|||||||" in text
    ours = text.split("<<<<<<< ", 1)[1].split("\n", 1)[1].split("||||||| ")[0]
    head, tail = text.split("<<<<<<< ", 1)[0], text.split(">>>>>>> ", 1)[1].split("\n", 1)[1]
    first, _, rest = ours.partition("\n")
    file.write_text(f"{head}{first}\n{HOOK}{rest}{tail}")


@pytest.fixture
def started(mini: Mini, pin: Pin) -> port_work.Work:
    """A port to an upstream that changed the lines around the graph hook."""
    later(mini, CONFLICT)
    done = port_work.start(pin, LATER, "auto")
    assert (done.stopped, done.conflicts) == ("swapmoe: graph: observe top k", ("src/graph.cpp",))
    return done.work


def test_a_whole_port(started: port_work.Work, mini: Mini, pin: Pin) -> None:
    before = GitRepo(mini.clone).run("for-each-ref").text
    with pytest.raises(UpstreamError, match="not finished") as unfinished:
        port_finish.finish(started)
    assert "unmerged: src/graph.cpp" in unfinished.value.evidence
    with pytest.raises(UpstreamError, match="markers are left"):
        port_work.resume(started)
    resolve(started)
    assert port_work.resume(started).stopped is None
    done = port_finish.finish(port_work.load(None))
    assert done.pin.series_dir == mini.patches / LATER
    assert (done.pin.series_dir / "overlay").read_text() == f"../{TAG}/overlay\n"
    assert series.read_names(done.pin.series_dir) == series.read_names(pin.series_dir)
    assert done.pin.commit == GitRepo(mini.clone).rev(LATER)
    with port_store.locked() as store:
        assert lint.lint(done.pin.series_dir, store, done.base).findings == ()
    assert done.unexplained == ("src/graph.cpp 1: build_moe",)
    assert done.unnamed == ()
    notes = (done.pin.series_dir / "PORTING.md").read_text()
    assert "pick(logits)" in notes.split("## Old and new")[1]
    assert "conflict: upstream changed the same place" in notes
    assert GitRepo(mini.clone).run("for-each-ref").text == before
    assert pins.default_tag() == TAG


def test_finishing_twice_gives_the_same_bytes_and_keeps_what_was_written(
    started: port_work.Work, mini: Mini
) -> None:
    resolve(started)
    port_work.resume(started)
    folder = port_finish.finish(started).pin.series_dir
    notes = folder / "PORTING.md"
    notes.write_text(notes.read_text().replace(port_notes.UNWRITTEN, "Moved below.\n\nTwice."))
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert b"Moved below.\n\nTwice.\n" in first["PORTING.md"]
    assert port_finish.finish(started).unexplained == ()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == first
    assert sorted(path.name for path in mini.patches.iterdir()) == ["PIN", TAG, LATER]


def test_a_hook_that_moved_to_another_function_is_told(started: port_work.Work) -> None:
    resolve(started)
    file = started.path / "src/graph.cpp"
    moved = f"tensor * other(context & ctx) {{\n    tensor * ids = x(ctx);\n{HOOK}}}\n"
    text = file.read_text()
    file.write_text(f"{text.replace(HOOK, '')}\n{moved} // after build_moe\n")
    port_work.resume(started)
    assert port_finish.finish(started).unnamed == (
        "no Hook: trailer of graph-observe-top-k.patch names src/graph.cpp other",
    )


def test_a_skipped_patch_is_left_out(started: port_work.Work, pin: Pin) -> None:
    assert port_work.resume(started, skip=True).stopped is None
    found = port_finish.finish(started).pin
    assert series.read_names(found.series_dir) == series.read_names(pin.series_dir)[:-1]


def test_nothing_left_of_a_patch_asks_for_skip(started: port_work.Work) -> None:
    started.repo.run("checkout", "--quiet", "--ours", "--", "src/graph.cpp")
    with pytest.raises(UpstreamError, match="nothing of the patch is left") as caught:
        port_work.resume(started)
    assert "--skip" in caught.value.hint


def test_a_lost_hook_is_a_finding_and_nothing_is_written(
    started: port_work.Work, mini: Mini
) -> None:
    (started.path / "src/graph.cpp").write_text("int nothing;\n")
    port_work.resume(started)
    with pytest.raises(SeriesError) as caught:
        port_finish.finish(started)
    assert any("P109 graph-observe-top-k.patch" in line for line in caught.value.evidence)
    assert sorted(path.name for path in mini.patches.iterdir()) == ["PIN", TAG]


def test_committed_markers_and_merges_are_refused(started: port_work.Work) -> None:
    repo = started.repo
    commit_all(repo, "swapmoe: graph: observe top k")
    with pytest.raises(UpstreamError) as caught:
        port_finish.finish(started)
    assert any(line.startswith("conflict marker: src/graph.cpp:") for line in caught.value.evidence)
    merge = repo.run("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-p", "HEAD~1", "-m", "x").text
    repo.run("checkout", "--quiet", "--detach", merge)
    assert any("merge commits" in line for line in port_work.unfinished(started))
    repo.run("checkout", "--quiet", "--detach", started.base)
    assert any("not built on" in line for line in port_work.unfinished(started))


def test_overlay_edits_go_back_to_the_shared_folder(
    started: port_work.Work, mini: Mini, pin: Pin
) -> None:
    port_work.resume(started, skip=True)
    (started.path / OVERLAY).write_text("// newer upstream\nvoid llama_expert_free() {}\n")
    (started.path / "src/llama-compat.h").write_text("#pragma once\n")
    commit_all(started.repo, "swapmoe: overlay: compat")
    done = port_finish.finish(started)
    assert done.overlay_edits == ("src/llama-compat.h", OVERLAY)
    assert (pin.series_dir / "overlay/src/llama-compat.h").read_text() == "#pragma once\n"
    for tag in (TAG, LATER):
        with port_store.locked() as store:
            base = port_target.base_of(store, pin, "auto") if tag == TAG else done.base
            assert lint.lint(pins.load(tag).series_dir, store, base).findings == ()


def test_overlay_changed_on_both_sides_is_refused(started: port_work.Work, pin: Pin) -> None:
    port_work.resume(started, skip=True)
    (started.path / OVERLAY).write_text("// one\n")
    commit_all(started.repo, "swapmoe: overlay: one")
    (pin.series_dir / "overlay" / OVERLAY).write_text("// two\n")
    with pytest.raises(SeriesError) as caught:
        port_finish.finish(started)
    assert caught.value.evidence == (f"overlay/{OVERLAY}",)


def test_a_new_commit_becomes_a_named_patch(started: port_work.Work) -> None:
    port_work.resume(started, skip=True)
    file = started.path / "src/loader.cpp"
    file.write_text(file.read_text().replace("#include", "#include <new>\n#include", 1))
    commit_all(started.repo, "compile again")
    with pytest.raises(SeriesError, match="no patch name"):
        port_finish.finish(started)
    trailers = "Hook: src/loader.cpp loader\nOff-by-default: x\nTest: x\nUpstream-Status: Pending\n"
    message = f"swapmoe: loader: Include <new>, too\n\nIt moved.\n\n{trailers}"
    started.repo.run("commit", "--quiet", "--amend", "-m", message)
    names = series.read_names(port_finish.finish(started).pin.series_dir)
    assert names[-1] == "loader-include-new-too.patch"


def test_a_second_start_is_refused_unless_forced(started: port_work.Work, pin: Pin) -> None:
    with pytest.raises(UsageError, match="in progress"):
        port_work.start(pin, LATER, "auto")
    resolve(started)
    again = port_work.start(pin, LATER, "auto", force=True)
    assert "<<<<<<<" in (again.work.path / "src/graph.cpp").read_text()
    port_work.forget(again.work)
    with pytest.raises(UsageError, match="no port in progress: b20"):
        port_work.load(LATER)


def test_tag_and_commit_are_asked_for(mini: Mini, pin: Pin, tmp_path: Path) -> None:
    later(mini, lambda top: None)
    folder = tmp_path / "plain"
    GitRepo(mini.clone).run("worktree", "add", "--quiet", "--detach", folder, LATER)
    (folder / ".git").unlink()
    work = port_work.start(pin, str(folder), "auto").work
    assert work.target.name == "plain"
    with pytest.raises(UsageError) as caught:
        port_finish.finish(work)
    assert caught.value.evidence == ("tag: unknown", "commit: unknown")
    done = port_finish.finish(work, tag="b21", commit="1" * 40)
    assert (done.pin.tag, done.pin.commit) == ("b21", "1" * 40)
    with pytest.raises(UsageError, match="the pin this port started from"):
        port_finish.finish(work, tag=TAG, commit="1" * 40)
