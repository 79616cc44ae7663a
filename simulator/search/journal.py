"""The journal of a search: its outcomes on disk, from which a stopped search continues.

The first line is the problem, and every other line an outcome, as JSON, in the order of their arrival. A last line
that was cut off when the search stopped is ignored, and its setting is evaluated again. An existing file is changed
only by the first new outcome, so a refused file, also one refused for its outcomes, stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, final

from pipesched.profiles import ProfileError
from pipesched.profiles.io import read_profile_text, record_schema
from pipesched.profiles.processes import rare_collections
from pipesched.schedules import ScheduleError
from pipesched.schedules.common import shown
from pipesched.schedules.formats import append_text, load_json, write_text
from pipesched.simulator import SimulationError
from pipesched.simulator.search.outcome import Outcome
from pipesched.simulator.search.runners import Runner, make_process_runner
from pipesched.simulator.search.setting import Setting

_FORMAT = "pipesched-search"
_MOST_AT_ONCE = 16
"""Most settings that a process takes at once: many of them have the same lists, which it makes once."""
_LARGEST = 10**30
"""Seconds and bytes of an outcome, so few that no sum or quotient of them is infinite."""


@final
class Journal:
    """One file; its earlier outcomes are `known`, by setting."""

    def __init__(self, path: str | Path, problem: object, expected: str) -> None:
        """Open the file, or begin one.

        Args:
            path: Path of the file.
            problem: Everything but the settings that determines the outcomes; problems that differ have different
                ``repr``.
            expected: Description of the search that the file should be from, for messages.

        Raises:
            SimulationError: The file is no journal, or belongs to another problem.
            ProfileError: The file cannot be read.
            ScheduleError: The file cannot be written.
        """
        self._path = Path(path)
        self.known: dict[Setting, Outcome] = {}
        head = {"format": _FORMAT, "version": 2, "problem": sha256(repr(problem).encode()).hexdigest()}
        text = read_profile_text(self._path) if self._path.exists() else ""
        *lines, cut_short = text.split("\n")
        if self._json(lines[0]) != head if lines else not json.dumps(head).startswith(cut_short):
            raise SimulationError(
                f"{self._path}: got the journal of another search, expected one of {expected}; try another file"
            )
        for number, line in enumerate(lines[1:], 2):
            outcome = self._outcome(number, line)
            self.known[outcome.setting] = outcome
        self._mended: str | None = None
        if cut_short or not lines:
            self._mended = "".join(f"{line}\n" for line in lines or [json.dumps(head)])
        if not self._path.exists():
            self._mend()

    def add(self, outcome: Outcome) -> None:
        """Store an outcome; it is in the file when this returns.

        Raises:
            ScheduleError: The file cannot be written.
        """
        self._mend()
        append_text(self._path, _line(outcome))

    @staticmethod
    def line_schema() -> dict[str, Any]:
        """Return the JSON Schema of a line: the first is the head of the search, the others are outcomes."""
        said = {
            "format": {"const": _FORMAT, "description": "Format of the file."},
            "version": {"const": 2, "description": "Version of the format."},
            "problem": {
                "type": "string",
                "description": "SHA-256 of all inputs that affect outcomes, except the settings.",
            },
        }
        head = {"title": "Head", "type": "object", "properties": said, "required": [*said]}
        outcome = record_schema(Outcome)
        definitions = outcome.pop("$defs")
        return {"anyOf": [{**head, "additionalProperties": False}, outcome], "$defs": definitions}

    def _mend(self) -> None:
        """Write the whole lines alone, if the file ends in a partial line, or has no lines yet."""
        if self._mended is not None:
            write_text(self._path, self._mended)
            self._mended = None

    def _json(self, line: str) -> object:
        try:
            return load_json(line, "")
        except ScheduleError as error:
            raise SimulationError(
                f"{self._path}: line 1: got no JSON, expected the journal of a search; try another file"
            ) from error

    def _outcome(self, number: int, line: str) -> Outcome:
        from pipesched.profiles.io import parse_record

        try:
            where = f"{self._path}: line {number}: got no outcome of a setting"
            outcome = parse_record(Outcome, line, where, "try another file")
        except ProfileError as error:
            raise SimulationError(str(error)) from error
        for name, value in {"seconds": outcome.seconds, "held_bytes": outcome.held_bytes}.items():
            if value is not None and not 0 <= value <= _LARGEST:
                raise SimulationError(f"{where}: {name}: got {shown(value)}, expected 0 to 1e30; try another file")
        return outcome


def _line(outcome: Outcome) -> str:
    """Return the line of an outcome, without the fields that are unknown."""
    known = {name: value for name, value in asdict(outcome).items() if value is not None and value != ()}
    return f"{json.dumps(known, allow_nan=False)}\n"


def search_all(
    settings: Sequence[Setting],
    judge: Callable[[Setting], Outcome],
    *,
    alike: Callable[[Setting], Any],
    workers: int = 1,
    runner: Runner | None = None,
    journal: Journal | None = None,
    tick: Callable[[float], None] = lambda fraction: None,  # noqa: ARG005
) -> tuple[Outcome, ...]:
    """Return the outcomes of the settings, in order; outcomes in a journal are not computed again.

    Args:
        settings: The settings, each once.
        judge: Evaluates a setting; can be sent to another process.
        alike: Sort key, equal for settings with the same op lists. Such settings are evaluated one after another,
            because a process keeps its last lists.
        workers: Processes; 1 is this process.
        runner: Runner that evaluates the settings, or None for processes of this machine.
        journal: Stores the outcomes, or None for no storage.
        tick: Callback with the fraction done.
    """
    known = {} if journal is None else journal.known
    outcomes = {setting: known[setting] for setting in settings if setting in known}
    left = sorted((setting for setting in settings if setting not in outcomes), key=alike)
    run, shares = runner or make_process_runner(workers), _shares(left, workers)
    with rare_collections():
        for outcome in run(judge, lambda: next(shares, ())):
            outcomes[outcome.setting] = outcome
            if journal is not None:
                journal.add(outcome)
            tick(len(outcomes) / len(settings))
    return tuple(replace(outcomes[setting], setting=setting) for setting in settings)  # files have no `OwnName`


def _shares(settings: Sequence[Setting], workers: int) -> Iterator[Sequence[Setting]]:
    """Yield settings for one process at a time, fewer of them towards the end, so that all processes end together."""
    first = 0
    while first < len(settings):
        after = first + max(1, min(_MOST_AT_ONCE, (len(settings) - first) // (4 * workers)))
        yield settings[first:after]
        first = after
