"""The journal of a search: its outcomes on disk, from which a stopped search goes on.

A line of JSON each: first which problem it is of, then the outcomes, as they come. A last line that was cut short when
the search was stopped is left out, and found anew.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, final

from pipesched.profiles import ProfileError
from pipesched.profiles.io import read_profile_text, record_schema
from pipesched.schedules import ScheduleError
from pipesched.schedules.formats import append_text, load_json, write_text
from pipesched.simulator import SimulationError
from pipesched.simulator.tuner.setting import Setting
from pipesched.simulator.tuner.setting_evaluation import Problem
from pipesched.simulator.tuner.setting_outcome import SettingOutcome

_FORMAT = "pipesched-search"


@final
class Journal:
    """One file; what is in it already is `known`."""

    def __init__(self, path: str | Path, problem: Problem, how: str = "simulate") -> None:
        """Open the file, or begin one.

        Args:
            path: Path of the file.
            problem: What is searched.
            how: Whatever else the outcomes depend on.

        Raises:
            SimulationError: It is none of ours, or of another problem.
            ProfileError: It cannot be read.
            ScheduleError: It cannot be written.
        """
        self._path = Path(path)
        self.known: dict[Setting, SettingOutcome] = {}
        head = {"format": _FORMAT, "version": 1, "problem": sha256(repr((problem, how)).encode()).hexdigest()}
        text = read_profile_text(self._path) if self._path.exists() else ""
        *lines, cut_short = text.split("\n")
        if self._json(lines[0]) != head if lines else not json.dumps(head).startswith(cut_short):
            raise SimulationError(
                f"{self._path}: got a search of something else, expected one of this profile, batch, machines and "
                "evaluator; try another file"
            )
        for number, line in enumerate(lines[1:], 2):
            outcome = self._outcome(number, line)
            self.known[outcome.setting] = outcome
        if cut_short or not lines:  # only now: what is not ours stays as it is
            write_text(self._path, "".join(f"{line}\n" for line in lines or [json.dumps(head)]))

    def add(self, outcome: SettingOutcome) -> None:
        """Keep what was found; it is in the file when this returns.

        Raises:
            ScheduleError: It cannot be written.
        """
        append_text(self._path, json.dumps(asdict(outcome), allow_nan=False) + "\n")

    @staticmethod
    def line_schema() -> dict[str, Any]:
        """Return the JSON Schema of a line: the first says what is searched, each other one an outcome."""
        said = {
            "format": {"const": _FORMAT, "description": "What the file is."},
            "version": {"const": 1, "description": "The version of its form."},
            "problem": {"type": "string", "description": "SHA-256 of profile, batch, machines and evaluator."},
        }
        head = {"title": "Head", "type": "object", "properties": said, "required": [*said]}
        outcome = record_schema(SettingOutcome)
        definitions = {"$defs": outcome.pop("$defs")}
        return {"anyOf": [{**head, "additionalProperties": False}, outcome], **definitions}

    def _json(self, line: str) -> object:
        try:
            return load_json(line, "")
        except ScheduleError as error:
            raise SimulationError(
                f"{self._path}: line 1: got no JSON, expected a search of ours; try another file"
            ) from error

    def _outcome(self, number: int, line: str) -> SettingOutcome:
        from pipesched.profiles.io import parse_record

        try:
            where = f"{self._path}: line {number}: got no outcome of a setting"
            return parse_record(SettingOutcome, line, where, "try another file")
        except ProfileError as error:
            raise SimulationError(str(error)) from error
