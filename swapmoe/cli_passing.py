"""Commands that hand what follows `--` to another program, and take nothing else for it.

click reads `-ngl 99` as `-n` with the value `gl`; llama.cpp has many such options.
"""

import difflib

import click

from swapmoe.errors import UsageError


class PassingCommand(click.Command):
    """A command that refuses what belongs after `--`, instead of splitting or guessing."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look at the words before `--`. Raises `UsageError` for one that is not ours."""
        takes_value = {
            name: not (param.is_flag or param.count)
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for name in (*param.opts, *param.secondary_opts)
        }
        words = iter(args)
        for word in words:
            if word == "--":
                break
            name, separator, _ = word.partition("=")
            if name in takes_value:
                if takes_value[name] and not separator:
                    next(words, None)
            elif not _is_short_with_number(word, takes_value):
                raise self._refusal(ctx, word, list(takes_value))
        return super().parse_args(ctx, args)

    def _refusal(self, ctx: click.Context, word: str, known: list[str]) -> UsageError:
        program = "llama-cli" if self.name == "run" else "llama-server"
        evidence = [f"arguments of {program} go after --, as they are"]
        near = difflib.get_close_matches(word.partition("=")[0], known, n=1, cutoff=0.75)
        if word.startswith("--") and near:
            evidence.insert(0, f"did you mean {near[0]}?")
        elif word[:2] in known and not word.startswith("--"):
            evidence.insert(0, f"{word[:2]} and its value are two words")
        elif not word.startswith("-"):
            evidence.insert(0, "a text of several words needs quotes")
        return UsageError(
            f"{word} is not an argument of {ctx.command_path}",
            evidence=evidence,
            hint=f"{ctx.command_path} --help",
        )


def _is_short_with_number(word: str, takes_value: dict[str, bool]) -> bool:
    """Whether this is an option and its value in one word: `-n64`."""
    return takes_value.get(word[:2], False) and word[2:].lstrip("-").isdigit()
