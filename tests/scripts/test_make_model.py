"""scripts/make_model.py as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

from swapmoe.models import shard_paths

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "make_model.py"


def run_script(*argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, str(SCRIPT), *argv], capture_output=True, text=True)


def test_script_prints_the_files(tmp_path: Path) -> None:
    done = run_script("--experts", "8", "--shards", "2", "-o", str(tmp_path / "m.gguf"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(p) for p in shard_paths(tmp_path / "m.gguf", 2)]
    assert "48 expert slices" in done.stderr


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--used", "9", "-o", "{}/m.gguf"], 2, "used (9) is more than experts (4)"),
        (["--type", "Q9", "-o", "{}/m.gguf"], 2, "Q9"),
        (["-o", "{}/none/m.gguf"], 9, "is not a folder"),
        ([], 2, "--output"),
    ],
)
def test_script_exit_codes(tmp_path: Path, argv: list[str], code: int, said: str) -> None:
    done = run_script(*[word.format(tmp_path) for word in argv])
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_from_widens_and_says_what_it_left(tmp_path: Path) -> None:
    small, wide = tmp_path / "small.gguf", tmp_path / "wide.gguf"
    run_script("--ffn", "256", "--type", "F32", "-o", str(small))
    done = run_script("--from", str(small), "--type", "Q4_K", "-o", str(wide))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(wide)
    assert "16 experts, 4 used; 2 of 6 routed tensors in Q4_K" in done.stderr
    assert "blk.1.ffn_up_exps.weight keeps its type: row of 64" in done.stderr


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--layers", "3", "--hash-layers", "1"], 2, "--layers, --hash-layers does not go with it"),
        (["--preset", "tiny"], 2, "do not go with --from"),
        (["--shards", "2"], 2, "do not go with --from"),
        ([], 9, "cannot read"),
    ],
)
def test_from_refuses(tmp_path: Path, argv: list[str], code: int, said: str) -> None:
    source, target = tmp_path / "none.gguf", tmp_path / "m.gguf"
    done = run_script("--from", str(source), *argv, "-o", str(target))
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


MEASURE_WRITE = """
import resource, sys
from pathlib import Path
from tests.support.models import tiny_spec
from swapmoe.models import write_model
spec = tiny_spec(embd=1024, heads=64, ffn=1024, experts=128, layers=2)
path = write_model(spec, Path(sys.argv[1]))[0]
print(path.stat().st_size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", MEASURE_WRITE, str(tmp_path / "m.gguf")]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=True)
    size, peak = map(int, done.stdout.split())
    assert size > 400e6
    assert peak < 200e6
