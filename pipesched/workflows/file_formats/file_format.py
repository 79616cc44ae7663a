"""The registry of file formats, with their contents and JSON Schemas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pipesched.executor import launch, training
from pipesched.profiles import io
from pipesched.schedules import formats
from pipesched.simulator import search
from pipesched.workflows import require_choice

DIALECT = "https://json-schema.org/draft/2020-12/schema"

FormatName: TypeAlias = Literal[
    "schedule",
    "timeline",
    "profile",
    "run-costs",
    "stage-costs",
    "layer-costs",
    "cluster",
    "plan",
    "job",
    "checkpoint",
    "search",
]


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A file format of the project.

    Attributes:
        suffix: Suffix of the file.
        text: Contents, in one line.
        make_schema: Returns its JSON Schema.
    """

    suffix: str
    text: str
    make_schema: Callable[[], dict[str, Any]]


FILE_FORMATS: dict[FormatName, FileFormat] = {
    "schedule": FileFormat(
        ".json", "Op lists of every rank, and the properties of the schedule.", lambda: formats.schedule_schema()
    ),
    "timeline": FileFormat(
        ".json",
        "Start and end of every op of a measured or predicted run, and bytes in memory.",
        lambda: formats.timeline_schema(),
    ),
    "profile": FileFormat(
        ".json",
        "Seconds and bytes of every layer of a model, by micro-batch size.",
        lambda: io.record_schema(io.ProfileRecord),
    ),
    "run-costs": FileFormat(
        ".json",
        "Measured seconds of the ops of each stage, and of messages.",
        lambda: io.record_schema(io.RunCostsRecord),
    ),
    "stage-costs": FileFormat(
        ".csv", "Seconds and bytes of every stage, a row each.", lambda: io.cost_table_schema("stage")
    ),
    "layer-costs": FileFormat(
        ".csv", "Seconds and bytes of every layer, a row each.", lambda: io.cost_table_schema("layer")
    ),
    "cluster": FileFormat(
        ".json", "Devices, links and the seconds to hand over a message.", lambda: io.record_schema(io.ClusterRecord)
    ),
    "plan": FileFormat(
        ".json",
        "Plan for training a model: schedule, partition and batch, for given machines.",
        lambda: io.record_schema(io.PlanRecord),
    ),
    "job": FileFormat(".json", "Job: all settings of a run, for its processes.", lambda: launch.job_schema()),
    "checkpoint": FileFormat(
        ".json",
        "Index of a checkpoint: the settings of its training run, and its files.",
        lambda: training.checkpoint_schema(),
    ),
    "search": FileFormat(
        ".jsonl",
        "Outcomes of a search or sweep so far, one per line.",
        lambda: search.Journal.line_schema(),
    ),
}
"""The formats by name; a schema is loaded when it is asked for."""


def file_schema(name: FormatName) -> dict[str, Any]:
    """Return the JSON Schema of a file format, with the meaning of each field, in SI units.

    A schema gives fields, types and ranges. Only the reader checks fields against each other (numbers that rise, sums
    that agree). The schema of a table describes the list of its rows; the schema of a search describes one line.

    Args:
        name: One of `FILE_FORMATS`.

    Raises:
        ArgumentError: The format does not exist.
    """
    require_choice("name", name, FILE_FORMATS)
    file_format = FILE_FORMATS[name]
    return {
        "$schema": DIALECT,
        "title": f"pipesched {name} ({file_format.suffix})",
        "description": file_format.text,
        **{key: value for key, value in file_format.make_schema().items() if key not in ("title", "description")},
    }
