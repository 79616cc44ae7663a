"""Errors of the command line: their one line on stderr, and the exit codes."""

from __future__ import annotations

import re
from pathlib import Path

from pipesched.profiles.io import TRUST_ADVICE
from pipesched.workflows import ArgumentError

FINE = 0
NEGATIVE = 1
"""The answer is no: lists that cannot run, over memory, a measurement that disagrees."""
BAD_INPUT = 2
RANK_FAILED = 3
NOT_THERE = 4
"""Something is not installed, or not there."""
STOPPED = 130
"""The user stopped the command: 128 + SIGINT, as shells count it."""

_FLAGS = {
    "is_repeated": "--repeated",
    "num_ranks": "--ranks",
    "num_microbatches": "--microbatches",
    "num_chunks": "--chunks",
    "num_devices": "--devices",
    "num_runs": "--runs",
    "num_steps": "--steps",
    "is_distributed": "--distributed",
    "limit_bytes": "--memory-limit",
    "timeout_s": "--timeout",
    "has_green_contexts": "--green-contexts",
    "from_s": "--from",
    "to_s": "--to",
    "budget_s": "--budget",
    "fail_every_s": "--fail-every",
    "restart_s": "--restart",
    "checkpoint_s": "--checkpoint",
    "parameters": "--set",
    "patterns": "--pattern",
    "has_one_clock": "--same-clock",
    "bandwidth_factor": "--link bandwidth",
    "latency_factor": "--link latency",
    "slow_devices": "--slow",
    "slow_links": "--slow",
    "is_split": "--split",
    "bound_seconds": "--bound",
}
"""Options that are not called as the arguments of the library."""


_SAID = {
    r"see pipesched\.CATALOGUE": "see 'pipesched list'",
    r"our JSON \(schedules\.formats\.to_json\)": "our JSON (pipesched show --format json)",
    re.escape(TRUST_ADVICE): "try --trust-model if it is yours",
    r"try pipesched\.profile\('([^']*)'\)": r"try pipesched profile \1 --out FILE",
    r"with pipesched\.profile$": "with 'pipesched profile MODEL'",
    r"pipesched\.run has measured": "'pipesched run --out' has written",
    r"with pipesched\.profile_of_layers$": "with 'pipesched profile --layer-costs F --microbatch-size N --out P.json'",
    r"try pipesched\.plan with `trainer=(\w+)`": r"try 'pipesched plan ... --export \1', which tries only such plans",
    r"try pipesched\.sweep\b": "try 'pipesched sweep'",
    r"try pipesched\.tune\b": "try pipesched tune",
    r"try pipesched\.what_if\b": "try 'pipesched what-if'",
    r"with pipesched\.profile_from_runs$": "with 'pipesched profile --from RUNS --profile PROFILE'",
    r"with pipesched\.costs_from_runs\b": "with 'pipesched profile --from'",
    r"as pipesched\.profile_links measures it": "as 'pipesched profile-links' writes it",
    r"give them too \(`cluster`\)": "give them too, as --nodes 2 --machine dgx-h100",
}
"""What the library advises in its own words, and what the command line has for it."""


class InputError(ArgumentError):
    """An option, or a combination of options, makes no sense."""


class NotThereError(Exception):
    """Something that was asked for is not installed or not there."""


_FILES: dict[str, Path] = {}
"""The file of what a message may begin with: a schedule's name, or ``cluster``."""


def read_from(file: Path, subject: str) -> None:
    """Let messages that begin with `subject`, which was read from a file, begin with the file's name."""
    _FILES[subject] = file


def forget_files() -> None:
    """Forget what was read, before another command."""
    _FILES.clear()


def in_flags(error: BaseException | str) -> str:
    """Return what an error or a note says; what the library says of its arguments, said of options of the command line.

    An argument is named at the beginning, or between backticks: ``num_runs: got 5 without `jitter`, try `jitter=0.1```.
    Only an `ArgumentError` begins with one: others begin with what is wrong, as a schedule of any name.
    """
    message = str(error)
    file = _FILES.get(message.partition(": ")[0])
    if file is not None:
        message = f"{file}: {message}"
    for said, told in _SAID.items():
        message = re.sub(said, told, message)
    if isinstance(error, InputError):
        return message
    if isinstance(error, ArgumentError):
        message = re.sub(r"^([a-z_]+)(?=: )", lambda match: _flag(match[1]), message)
    message = re.sub(r"`([a-z_]+)=True`", lambda match: _flag(match[1]), message)
    message = re.sub(r"`([a-z_]+)=([^`]+)`", lambda match: f"{_flag(match[1])} {match[2]}", message)
    return re.sub(r"`([a-z_]+)`", lambda match: _flag(match[1]), message)


def _flag(argument: str) -> str:
    return _FLAGS.get(argument, "--" + argument.replace("_", "-"))
