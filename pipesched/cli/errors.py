"""Errors of the command line: one line on stderr, and the exit codes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pipesched.profiles.io import TRUST_ADVICE
from pipesched.schedules.common import option_name
from pipesched.workflows import ArgumentError

FINE = 0
NEGATIVE = 1
"""Exit code for a negative answer: lists that cannot run, over memory, a measurement that disagrees."""
BAD_INPUT = 2
RANK_FAILED = 3
NOT_THERE = 4
"""Exit code if a package or a device is missing."""
STOPPED = 130
"""Exit code if the user stopped the command: 128 + SIGINT, as in shells."""

_FLAGS = {
    "limit_bytes": "--memory-limit",
    "parameters": "--set",
    "bandwidth_factor": "--link bandwidth",
    "latency_factor": "--link latency",
    "slow_devices": "--slow",
    "slow_links": "--slow",
    "trainer": "--export",
}
"""Options with names of their own; `option_name` gives the others."""
_OPTIONS: dict[str, str] = {}
"""The options of the present command, by the names of their settings."""


_SAID = {
    r"see pipesched\.CATALOGUE": "see 'pipesched list'",
    r"our JSON \(schedules\.formats\.to_json\)": "our JSON (pipesched show --format json)",
    re.escape(TRUST_ADVICE): "try --trust-model if you trust the file",
    r"try pipesched\.profile\('([^']*)'\)": r"try pipesched profile \1 --out FILE",
    r"pipesched\.analytic_profile\('([^']*)', '([^']*)'\)": r"'pipesched profile \1 --gpu \2'",
    r"with pipesched\.profile$": "with 'pipesched profile MODEL'",
    r"pipesched\.run has measured": "'pipesched run --out' has written",
    r"with pipesched\.(?:\w+\.)*profile_of_layers$": (
        "with 'pipesched profile --layer-costs F --microbatch-size N --out P.json'"
    ),
    r"try pipesched\.plan with `trainer=(\w+)`": r"try 'pipesched plan ... --export \1', which tries only such plans",
    r"try pipesched\.sweep\b": "try 'pipesched sweep'",
    r"try pipesched\.tune\b": "try pipesched tune",
    r"try pipesched\.what_if\b": "try 'pipesched what-if'",
    r"with pipesched\.(?:\w+\.)*profile_from_runs$": "with 'pipesched profile --from RUNS --profile PROFILE'",
    r"with pipesched\.(?:\w+\.)*costs_from_runs\b": "with 'pipesched profile --from'",
    r"as pipesched\.(?:\w+\.)*profile_links measures it": "as 'pipesched profile-links' writes it",
    r"give the machines too \(`cluster`\)": "give the machines too, as --nodes 2 --machine dgx-h100",
}
"""Advice of the library, and its equivalent on the command line."""


class InputError(ArgumentError):
    """An option, or a combination of options, makes no sense."""


class NotThereError(Exception):
    """A requested package or device is missing."""


_FILES: dict[str, Path | str] = {}
"""The files of subjects of messages: a schedule's name, ``cluster``, or an option in a file of settings."""


def read_from(file: Path | str, subject: str) -> None:
    """Prefix messages on `subject`, which was read from a file, with the name of the file."""
    _FILES[subject] = file


def with_file(message: str, subject: str | None = None) -> str:
    """Return a message with the file of its subject before it; by default the subject stands before a colon."""
    file = _FILES.get(message.partition(": ")[0] if subject is None else subject)
    return message if file is None else f"{file}: {message}"


def name_options(options: Mapping[str, str]) -> None:
    """Name settings in messages by the options of the present command."""
    _OPTIONS.clear()
    _OPTIONS.update(options)


def forget_files() -> None:
    """Forget the files of the previous command."""
    _FILES.clear()


def in_flags(error: BaseException | str) -> str:
    """Return the text of an error or a note, with arguments of the library replaced by options of the command line.

    An argument stands at the beginning, or between backticks: ``num_runs: got 5 without `jitter`, try `jitter=0.1```.
    Only an `ArgumentError` begins with an argument. Other errors begin with their subject, as the name of a schedule.
    """
    message = with_file(str(error))
    for said, told in _SAID.items():
        message = re.sub(said, told, message)
    if isinstance(error, InputError):
        return message
    if isinstance(error, ArgumentError):
        message = with_file(re.sub(r"^([a-z_]+)(?=: )", lambda match: _flag(match[1]), message))
    message = re.sub(r"`([a-z_]+)=True`", lambda match: _flag(match[1]), message)
    message = re.sub(r"`([a-z_]+)=([^`]+)`", lambda match: f"{_flag(match[1])} {match[2]}", message)
    return re.sub(r"`([a-z_]+)`", lambda match: _flag(match[1]), message)


def _flag(argument: str) -> str:
    return _OPTIONS.get(argument) or _FLAGS.get(argument) or option_name(argument)
