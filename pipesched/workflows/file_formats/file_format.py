"""The registry of file formats, with their contents and JSON Schemas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipesched.workflows import FormatName, require_choice

DIALECT = "https://json-schema.org/draft/2020-12/schema"


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


def _schedule() -> dict[str, Any]:
    from pipesched.schedules.formats import schedule_schema

    return schedule_schema()


def _timeline() -> dict[str, Any]:
    from pipesched.schedules.formats import timeline_schema

    return timeline_schema()


def _profile() -> dict[str, Any]:
    from pipesched.profiles.io import profile_schema

    return profile_schema()


def _run_costs() -> dict[str, Any]:
    from pipesched.profiles.io import run_costs_schema

    return run_costs_schema()


def _cost_table(rows: str) -> dict[str, Any]:
    from pipesched.profiles.io import cost_table_schema

    return cost_table_schema(rows)


def _cluster() -> dict[str, Any]:
    from pipesched.profiles.io import cluster_schema

    return cluster_schema()


def _plan() -> dict[str, Any]:
    from pipesched.profiles.io import plan_schema

    return plan_schema()


def _job() -> dict[str, Any]:
    from pipesched.executor.launch import job_schema

    return job_schema()


def _checkpoint() -> dict[str, Any]:
    from pipesched.executor.training import checkpoint_schema

    return checkpoint_schema()


def _search() -> dict[str, Any]:
    from pipesched.simulator.search import Journal

    return Journal.line_schema()


FILE_FORMATS: dict[FormatName, FileFormat] = {
    "schedule": FileFormat(".json", "Op lists of every rank, and what they do not say.", _schedule),
    "timeline": FileFormat(".json", "What a run did or will do: when each op began and ended, bytes held.", _timeline),
    "profile": FileFormat(".json", "Seconds and bytes of every layer of a model, by micro-batch size.", _profile),
    "run-costs": FileFormat(".json", "What the ops of stages, and messages, took in runs.", _run_costs),
    "stage-costs": FileFormat(".csv", "Seconds and bytes of every stage, a row each.", lambda: _cost_table("stage")),
    "layer-costs": FileFormat(".csv", "Seconds and bytes of every layer, a row each.", lambda: _cost_table("layer")),
    "cluster": FileFormat(".json", "Devices, links and what handing a message over costs.", _cluster),
    "plan": FileFormat(".json", "How to train a model on the machines it was made for.", _plan),
    "job": FileFormat(".json", "All that the processes of a run need to know.", _job),
    "checkpoint": FileFormat(".json", "What a checkpoint of a training run is of, and its files.", _checkpoint),
    "search": FileFormat(".jsonl", "What a search or a sweep has found so far, an outcome a line.", _search),
}
"""The formats by name."""


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
