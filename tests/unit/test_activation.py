"""The lines that prove that the engine does what it was asked to do."""

import re
from pathlib import Path

import pytest

from swapmoe import activation, gguf_info
from swapmoe.config import RunSettings
from swapmoe.gguf_info import ModelFacts
from tests.support.headers import MOE, ROWS, gguf, write

EVERYTHING = RunSettings(
    io="mmap", prefetch=True, fixation=4, keep_recent=3, cache_size=(7 << 20) + 1
)
LOG = """\
llama_model_loader: loaded meta data
expert streaming enabled \u2014 skipping initial mmap prefetch for routed expert tensors
expert keep-recent window = 3 experts per layer
expert_stream: cache size = 7.00 MiB
load_tensors:   CPU_REPACK model buffer size =     0.01 MiB
async prefetch thread started
expert_stream: tracking 24 routed expert slices
expert_stream: io = mmap
expert fixation active \u2014 top-k pinned for the first 4 forward passes
"""


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    return gguf_info.inspect(write(tmp_path / "m.gguf", gguf(MOE, ROWS)))


def test_a_whole_log_lacks_nothing(facts: ModelFacts) -> None:
    assert activation.expected(facts, EVERYTHING).missing(LOG) == []
    assert activation.expected(facts, EVERYTHING).missing(LOG.replace("7.00", "7")) == []
    assert activation.expected(facts, RunSettings()).missing(LOG) == []


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("expert streaming enabled.*", "streaming"),
        ("expert keep-recent.*", "--keep-recent"),
        (".*cache size.*", "--cache-size"),
        ("async prefetch.*", "--prefetch"),
        (".*tracking.*", "streaming"),
        (".*io = mmap", "--io"),
        ("expert fixation.*", "--fixation"),
    ],
)
def test_each_missing_line_is_named(facts: ModelFacts, line: str, named: str) -> None:
    log = re.sub(f"(?m)^{line}\n", "", LOG)
    (missing,) = activation.expected(facts, EVERYTHING).missing(log)
    assert f"no line for {named}: " in missing


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("window = 3 ", "window = 30 "),
        ("= 7.00 MiB", "= 17.00 MiB"),
        ("first 4 forward", "first 40 forward"),
        ("io = mmap", "io = fault"),
    ],
)
def test_another_number_is_not_the_line(facts: ModelFacts, said: str, instead: str) -> None:
    log = LOG.replace(said, instead)
    assert len(activation.expected(facts, EVERYTHING).missing(log)) == 1


def test_the_slices_are_those_of_the_header(facts: ModelFacts) -> None:
    log = LOG.replace("tracking 24", "tracking 240")
    (missing,) = activation.expected(facts, RunSettings()).missing(log)
    assert missing == "the engine tracks 240 slices, the model's header has 24"


def test_a01_repacked_experts_are_noticed(facts: ModelFacts) -> None:
    log = LOG.replace("0.01 MiB", "99.00 MiB")
    (missing,) = activation.expected(facts, RunSettings()).missing(log)
    assert "experts were copied into memory" in missing
    assert activation.expected(facts, RunSettings(), other_models=True).missing(log) == []


def test_an_empty_log_lacks_everything(facts: ModelFacts) -> None:
    missing = activation.expected(facts, EVERYTHING).missing("")
    assert len(missing) == 7
    error = activation.failure("llama-cli", missing, LOG)
    assert error.message.startswith("llama-cli did not confirm what was asked for: no line for")
    assert "it said: expert_stream: io = mmap" in error.evidence


def test_the_log_is_private_and_goes() -> None:
    with activation.private_log() as path:
        assert activation.read_log(path) == ""
        path.write_bytes(b"a\xff\n")
        assert activation.read_log(path) == "a\ufffd\n"
        assert path.parent.stat().st_mode & 0o077 == 0
    assert not path.parent.exists()
