"""How long a program's compute threads spin when they wait for each other.

With libgomp's default they spin for milliseconds, and take the cores from the threads that read
experts (docs/decisions/013-threads-that-wait.md). Other OpenMP libraries ignore the variable.
"""

from collections.abc import Mapping

SPIN_COUNT = "1000"
"""What libgomp itself takes when there are more threads than cores."""
_CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def variables(io: str, env: Mapping[str, str]) -> dict[str, str]:
    """What to add to a program's environment `env`; nothing where experts have no readers.

    `io` is direct, mmap or fault. What the user has chosen stays.
    """
    if io != "direct" or any(name in env for name in _CHOICES):
        return {}
    return {"GOMP_SPINCOUNT": SPIN_COUNT}
