"""Old spellings of how a model is loaded, and what they mean while experts are streamed.

llama.cpp replaced its switches by `--load-mode` in July 2026 and removed them in September; the
last one on a line wins, in both generations.
"""

from collections.abc import Callable, Sequence

from swapmoe.flags import option_name

MAPPED = "mmap"
_SWITCHES = {
    "--mmap": MAPPED,
    "--no-mmap": "none",
    "--mlock": "mmap+mlock",
    "--direct-io": "dio",
    "-dio": "dio",
    "--no-direct-io": MAPPED,
    "-ndio": MAPPED,
}
_OPTIONS = ("--load-mode", "-lm")


def take_mapping(
    extra: Sequence[str], takes_value: Callable[[str], bool]
) -> tuple[tuple[str, ...], list[str]]:
    """Extra arguments without those that ask for the mapping that streaming needs anyway.

    Returns what is left and, for people, what was taken out. When the last one asks for something
    else, all stay: they are refused with the other options that belong to swapmoe.
    """
    kept: list[str] = []
    taken: list[str] = []
    mode = MAPPED
    words = iter(extra)
    for word in words:
        name = option_name(word)
        _, separator, value = word.partition("=")
        if name in _SWITCHES and not separator:
            mode = _SWITCHES[name]
            taken.append(word)
        elif name in _OPTIONS:
            given = [word] if separator else [word, next(words, "")]
            mode = value if separator else given[-1]
            taken.append(" ".join(given))
        else:
            kept.append(word)
            if name and not separator and takes_value(name):
                kept += [following] if (following := next(words, None)) is not None else []
    return (tuple(kept), taken) if mode == MAPPED else (tuple(extra), [])
