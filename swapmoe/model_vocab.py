"""The byte-level vocabulary of generated models: any text in, readable made-up words out."""

from dataclasses import dataclass

from gguf import TokenType

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BYTES = 256
# One merge, because readers of the format expect a list that is not empty.
MERGE = ("Ġ", "t")
MIN_VOCAB = BYTES + 1 + len(SPECIALS)

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_CONSONANTS = "bdfghjklmnprstvwyz"
_VOWELS = "aeiou"


@dataclass(frozen=True)
class Vocabulary:
    """Token texts and types; `speakable` tells which tokens a model may favour in its output."""

    tokens: list[str]
    types: list[TokenType]
    speakable: list[bool]
    eos: int

    @property
    def merges(self) -> list[str]:
        """The BPE merges, as the file format spells them."""
        return [" ".join(MERGE)]


def _byte_tokens() -> list[str]:
    """Return GPT-2's printable stand-in for each byte."""
    spare = iter(range(0x100, 0x200))
    return [chr(b) if b in _PRINTABLE else chr(next(spare)) for b in range(BYTES)]


def _word(number: int) -> str:
    """Return the made-up word of a number; distinct numbers give distinct words."""
    syllables = [c + v for c in _CONSONANTS for v in _VOWELS]
    word = ""
    number += len(syllables)
    while number:
        number, digit = divmod(number, len(syllables))
        word = syllables[digit] + word
    return "Ġ" + word


def build_vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary of `size` >= MIN_VOCAB tokens: bytes, one merge, specials, then words.

    Control characters and parts of multi-byte characters can be read but are not speakable, so that
    output is plain text; neither are the specials, so that greedy output never stops early.
    """
    fixed = [*_byte_tokens(), "".join(MERGE), *SPECIALS]
    words = [_word(number) for number in range(size - len(fixed))]
    normal, control = TokenType.NORMAL, TokenType.CONTROL
    types = [*[normal] * (BYTES + 1), *[control] * len(SPECIALS), *[normal] * len(words)]
    speakable = [
        *[0x20 <= byte < 0x7F for byte in range(BYTES)],
        True,
        *[False] * len(SPECIALS),
        *[True] * len(words),
    ]
    return Vocabulary([*fixed, *words], types, speakable, eos=BYTES + 1)
