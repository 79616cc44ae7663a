"""The result of a run as text for other processes: for the launcher in a file, for other ranks in a message."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from pipesched.executor.runs.measuring_job import Measured
from pipesched.executor.training import Scores, ScoreTable, Trained
from pipesched.schedules.formats import timeline_from_json, timeline_to_json


def result_file(folder: Path) -> Path:
    """Return the file in which the first process writes the result for its launcher."""
    return folder / "result.json"


def result_to_text(result: Measured | Trained) -> str:
    """Return a result as JSON in which a number may be NaN or infinite."""
    if isinstance(result, Trained):
        fields = TypeAdapter(Trained).dump_python(replace(result, steps=()))
        return json.dumps({**fields, "steps": [(step.loss, step.accuracy) for step in result.steps]})
    return json.dumps({"timeline": timeline_to_json(result.timeline)} | result.numbers())


def result_from_text(text: str) -> Measured | Trained:
    """Return the result in a text of `result_to_text`.

    Raises:
        ValueError: The text is not a result.
    """
    fields = json.loads(text)
    if "timeline" not in fields:
        steps = ScoreTable()
        for loss, accuracy in TypeAdapter(list[tuple[float, float | None]]).validate_python(fields.pop("steps")):
            steps.append(Scores(loss, accuracy))
        return replace(TypeAdapter(Trained).validate_python({**fields, "steps": ()}), steps=steps)
    timeline = timeline_from_json(fields.pop("timeline"), "the first rank's measurement")
    numbers = TypeAdapter(dict[str, tuple[float, ...]]).validate_python(fields)
    return Measured(timeline, **numbers)
