"""What the command line says when something is wrong, and the exit codes."""

from __future__ import annotations

import re

from pipesched.workflows import ArgumentError

FINE = 0
NEGATIVE = 1
"""The answer is no: lists that cannot run, over memory, a measurement that disagrees."""
BAD_INPUT = 2
RANK_FAILED = 3
NOT_THERE = 4
"""Something is not installed, or not there."""
STOPPED = 130
"""As shells count it: 128 + SIGINT."""

_FLAGS = {
    "num_ranks": "--stages",
    "num_microbatches": "--microbatches",
    "num_chunks": "--chunks",
    "num_devices": "--devices",
    "num_runs": "--runs",
    "num_steps": "--steps",
    "is_distributed": "--distributed",
    "limit_bytes": "--memory-limit",
    "timeout_s": "--timeout",
    "parameters": "--set",
}
"""Options that are not called as the arguments of the library."""


class InputError(ArgumentError):
    """An option, or a combination of options, makes no sense."""


class NotThereError(Exception):
    """Something that was asked for is not installed or not there."""


def in_flags(error: BaseException) -> str:
    """Return what an error says; what the library says of its arguments, said of the options of the command line.

    An argument is named at the beginning, or between backticks: ``num_runs: got 5 without `jitter`, try `jitter=0.1```.
    Only an `ArgumentError` begins with one: others begin with what is wrong, as a schedule of any name.
    """
    message = str(error)
    if isinstance(error, InputError):
        return message
    if isinstance(error, ArgumentError):
        message = re.sub(r"^([a-z_]+)(?=: )", lambda found: _flag(found[1]), message)
    message = re.sub(r"`([a-z_]+)=True`", lambda found: _flag(found[1]), message)
    message = re.sub(r"`([a-z_]+)=([^`]+)`", lambda found: f"{_flag(found[1])} {found[2]}", message)
    return re.sub(r"`([a-z_]+)`", lambda found: _flag(found[1]), message)


def _flag(argument: str) -> str:
    return _FLAGS.get(argument, "--" + argument.replace("_", "-"))
