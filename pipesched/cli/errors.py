"""What the command line says when something is wrong, and the exit codes."""

from __future__ import annotations

FINE = 0
NEGATIVE = 1
"""The answer is no: lists that cannot run, over memory, a measurement that disagrees."""
BAD_INPUT = 2
RANK_FAILED = 3
NOT_THERE = 4
"""Something is not installed, or not there."""
STOPPED = 130
"""As shells count it: 128 + SIGINT."""


class InputError(ValueError):
    """An option, or a combination of options, makes no sense."""


class NotThereError(Exception):
    """Something that was asked for is not installed or not there."""
