"""Proof from nothing that a series gives its recorded tree with git's own commands."""

import tempfile
from pathlib import Path

from swapmoe import apply, gitrepo
from swapmoe.errors import ApplyError
from swapmoe.gitrepo import GitRepo
from swapmoe.pins import Pin


def prove(pin: Pin, repo: GitRepo, base: str) -> None:
    """Apply the series twice to a fresh copy of ``base`` and compare with the manifest's tree.

    Once as people do who take the folder: copy the overlay, ``git am`` the patches. Once with
    ``git apply`` of the exported single file, which is made twice and has to be the same bytes.
    Raises SeriesError and ApplyError.
    """
    exported = apply.export(pin, repo, base)
    if exported != apply.export(pin, repo, base):
        raise ApplyError("two exports of the series differ")
    with tempfile.TemporaryDirectory(prefix="swapmoe-prove-") as folder:
        fresh = gitrepo.init(Path(folder, "llama.cpp"))
        fresh.run("fetch", "--quiet", "--depth=1", "--", repo.path.as_uri(), base)
        fresh.run("checkout", "--quiet", "--detach", "FETCH_HEAD")
        single = Path(folder, "swapmoe.patch")
        single.write_bytes(exported)
        fresh.run("apply", "--index", single)
        _compare(pin, fresh, fresh.run("write-tree").text, "git apply of the exported patch")
        fresh.run("reset", "--quiet", "--hard", "FETCH_HEAD")
        _am(pin, fresh)
        tree_id = fresh.tree_of("HEAD") or ""
        _compare(pin, fresh, tree_id, "git am of the patches on the overlay")


def _am(pin: Pin, fresh: GitRepo) -> None:
    found = apply.read_series(pin)
    for file in found.overlay:
        path = fresh.path / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
    fresh.run("add", "--all", "--force", "--", ".")
    fresh.run("commit", "--quiet", "--allow-empty", "-m", "overlay")
    if found.patches:
        fresh.run("am", "--quiet", *(found.folder.absolute() / p.name for p in found.patches))


def _compare(pin: Pin, repo: GitRepo, tree_id: str, what: str) -> None:
    wanted = pin.manifest.series.tree
    if tree_id != wanted:
        differing = repo.run("diff", "--name-only", wanted, tree_id, check=False).text.splitlines()
        raise ApplyError(
            f"{what} does not give the recorded tree",
            evidence=[f"tree id {tree_id}, recorded {wanted}", *differing],
        )
