"""Entry point of ``python -m swapmoe``."""

import sys

from swapmoe.cli import main

sys.exit(main())
