"""How much of this machine there is."""

from __future__ import annotations

import os


def num_cores() -> int:
    """Return the cores that the operating system shows."""
    return os.cpu_count() or 1
