"""Which pin the tests with real builds are about."""

import os

from swapmoe import pins
from swapmoe.pins import Pin


def chosen_pin() -> Pin:
    """The pin that SWAPMOE_PIN names, as for the commands themselves; else the default one."""
    return pins.load(os.environ.get("SWAPMOE_PIN"))
