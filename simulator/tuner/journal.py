"""What a search has found so far, on disk, so that a stopped one goes on from there.

A line of JSON each: first which problem it is of, then the outcomes, as they come. A last line that was cut short when
the search was stopped is left out, and found anew.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, final

from pipesched.profiles.files import read_text
from pipesched.simulator.errors import SimulationError
from pipesched.simulator.tuner.evaluate import Problem
from pipesched.simulator.tuner.outcome import Outcome
from pipesched.simulator.tuner.setting import Setting

_FORMAT = "pipesched-search"


@final
class Journal:
    """One file; what is in it already is `known`."""

    def __init__(self, path: str | Path, problem: Problem, how: str = "simulate") -> None:
        """Open the file, or begin one.

        Args:
            path: Of the file.
            problem: What is searched.
            how: Whatever else the outcomes depend on.

        Raises:
            SimulationError: It is none of ours, or of another problem.
            ProfileError: It cannot be read.
            OSError: It cannot be written.
        """
        self._path = Path(path)
        self.known: dict[Setting, Outcome] = {}
        head = {"format": _FORMAT, "version": 1, "problem": sha256(repr((problem, how)).encode()).hexdigest()}
        text = read_text(self._path) if self._path.exists() else ""
        if not text.endswith("\n"):
            text = text[: text.rfind("\n") + 1]
            self._path.write_text(text)
        lines = [self._read(number, line) for number, line in enumerate(text.splitlines(), 1)]
        if not lines:
            self._append(head)
            return
        if lines[0] != head:
            raise SimulationError(
                f"{self._path}: got a search of something else, expected one of this profile, batch, machines and "
                "evaluator; try another file"
            )
        for number, line in enumerate(lines[1:], 2):
            outcome = self._outcome(number, line)
            self.known[outcome.setting] = outcome

    def add(self, outcome: Outcome) -> None:
        """Keep what was found; it is on disk when this returns."""
        self._append(asdict(outcome))

    def _append(self, data: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(data, allow_nan=False) + "\n")

    def _read(self, number: int, line: str) -> Any:
        try:
            return json.loads(line)
        except ValueError:
            raise SimulationError(
                f"{self._path}: line {number}: got no JSON, expected a search of ours; try another file"
            ) from None

    def _outcome(self, number: int, line: Any) -> Outcome:
        names = {field.name for field in fields(Outcome)}, {field.name for field in fields(Setting)}
        if (
            not isinstance(line, dict)
            or not isinstance(line.get("setting"), dict)
            or names != (set(line), set(line["setting"]))
        ):
            raise SimulationError(
                f"{self._path}: line {number}: got no outcome of a setting, expected one; try another file"
            )
        return Outcome(**{**line, "setting": Setting(**line["setting"])})
