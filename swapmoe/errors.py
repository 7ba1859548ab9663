"""Every expected failure and its exit code.

Anything else that reaches the command line is a bug: it exits 1 and names a log file.
"""

from collections.abc import Sequence
from typing import ClassVar


class SwapmoeError(Exception):
    """A failure the user can act on: what failed, the evidence, what to type next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, evidence: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.evidence = tuple(evidence)
        self.hint = hint


class UsageError(SwapmoeError):
    """Wrong command line."""

    exit_code = 2


class ConfigError(SwapmoeError):
    """Wrong configuration file or environment value."""

    exit_code = 3


class ToolError(SwapmoeError):
    """A needed program (git, cmake, a compiler) is missing or too old."""

    exit_code = 4


class UpstreamError(SwapmoeError):
    """The llama.cpp source cannot be had, or the checkout is not usable as it is."""

    exit_code = 5


class SeriesError(SwapmoeError):
    """The patch series breaks a rule or does not match its manifest."""

    exit_code = 6


class ApplyError(SwapmoeError):
    """The series does not apply, or the patched tree is not the recorded one."""

    exit_code = 7


class BuildError(SwapmoeError):
    """Configuring or compiling failed."""

    exit_code = 8


class ModelError(SwapmoeError):
    """The model file is missing, broken or not usable with these settings."""

    exit_code = 9


class LaunchError(SwapmoeError):
    """A started program failed."""

    exit_code = 10


class DriftFound(SwapmoeError):
    """A port check found work to do: a finding, not a failure."""

    exit_code = 20
