"""What upstream has by now that could make a hook unnecessary, and what ours must keep up with."""

import re
from dataclasses import dataclass

from swapmoe.gitrepo import GitRepo


@dataclass(frozen=True)
class Equivalent:
    """Something upstream may grow: found when ``pattern`` matches in ``file``."""

    name: str
    file: str
    pattern: str
    hooks: str
    then: str


EQUIVALENTS = (
    Equivalent(
        "load modes",
        "common/arg.cpp",
        r'"--load-mode"',
        "none",
        "the launcher says --load-mode; the older switches are deprecated or gone",
    ),
    Equivalent(
        "load mode auto",
        "include/llama.h",
        r"\bLLAMA_LOAD_MODE_AUTO\b",
        "none",
        "the default may change with the system; the launcher always names a mode",
    ),
    Equivalent(
        "no older load switches",
        "common/arg.cpp",
        r'(?s)\A(?=.)(?!.*"--no-mmap")',
        "none",
        "--mmap, --no-mmap, --mlock, --direct-io and their variables are gone: --load-mode only",
    ),
    Equivalent(
        "lazily read tensors",
        "common/arg.cpp",
        r'"--lazy-mode"',
        "loader: init_mappings, create_tensor",
        "experts can be left out of the read-ahead with upstream's lazy ranges; they are "
        "still read by page faults and may still be repacked",
    ),
    Equivalent(
        "streamed experts",
        "common/arg.cpp",
        r'"--[a-z-]*(?:moe|expert)[a-z-]*(?:stream|cache|slot)[a-z-]*"'
        r'|"--[a-z-]*(?:stream|disk)[a-z-]*(?:moe|expert)[a-z-]*"',
        "all of loader and graph",
        "compare with upstream's own expert streaming (pull request 25294) before porting again",
    ),
    Equivalent(
        "routing callback",
        "include/llama.h",
        r"(?i)\bllama_\w*(?:moe|expert|rout)\w*_(?:cb|callback)\b",
        "graph: build_moe_ffn",
        "the observer node can become a callback",
    ),
    Equivalent(
        "repacking opt-out per tensor",
        "include/llama.h",
        r"\bno_repack\b|\bTENSOR_NO_REPACK\b",
        "loader: create_tensor",
        "experts can be kept out of the repacked buffer without a hook",
    ),
)
EXPERT_WORDS = frozenset(("up", "down", "gate", "gate_up", "ch"))
"""The words between ``ffn_`` and ``exps`` that this tool knows; ``ch`` is named, not streamed."""

_EXPERT_PATTERN = r'LLM_FFN_EXPS_REGEX\s*=\s*"([^"]*)"'


def found(repo: GitRepo, commit: str) -> tuple[Equivalent, ...]:
    """The equivalents that are in a llama.cpp tree."""
    texts: dict[str, str] = {}
    for file in {item.file for item in EQUIVALENTS}:
        shown = repo.run("cat-file", "blob", f"{commit}:{file}", check=False)
        texts[file] = shown.out.decode("utf-8", "replace") if shown.code == 0 else ""
    return tuple(item for item in EQUIVALENTS if re.search(item.pattern, texts[item.file]))


def new_expert_words(repo: GitRepo, commit: str) -> list[str]:
    """Words in upstream's own pattern for expert tensors that this tool does not know."""
    shown = repo.run("cat-file", "blob", f"{commit}:common/common.h", check=False)
    pattern = re.search(_EXPERT_PATTERN, shown.out.decode("utf-8", "replace"))
    words = set(re.findall(r"[a-z]+(?:_[a-z]+)*", pattern[1])) if pattern else set()
    return sorted(words - EXPERT_WORDS - {"ffn", "exps"})
