"""Costs that were measured in runs, as JSON: ``{"format": "pipesched-run-costs", "version": 3, "stages": [...], ...}``.

    {"format": "pipesched-run-costs", "version": 3, "runs": ["gpipe.json"], "warmup": 1, "microbatch_size": 4,
     "stages": [{"work": {"F": {"count": 7, "mean_s": 0.01, "deciles_s": [11 numbers, rising]}, "B": {...}},
                 "profiled": null}, ...],
     "hand_over": {"Op": {...}, "Recv": {...}, "Send": {...}, "Take": {...}}, "message": {...},
     "variation": {"passes": [11 factors, rising], "works": [11 factors, rising]},
     "yardstick": {"device": "cpu", "num_busy": 2, "kernel_s": 0.0003}}

Version 2 adds the variation of the seconds (``variation``), version 3 the speed of the machine (``yardstick``). The
sixth of 11 numbers is the median. ``profiled`` has the fields of `StageCost`: the stage in a profile, for its bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipesched.profiles.costs import RunCosts, RunStage, Spread, Variation
from pipesched.profiles.io.faults import require_no_faults
from pipesched.profiles.io.validation import Record, parse_record
from pipesched.schedules import Yardstick
from pipesched.schedules.common import Count, PositiveCount, Text

_ADVICE = "correct it, or make it again with pipesched.costs_from_runs"


class RunCostsRecord(Record):
    """Costs of runs in a file."""

    becomes: ClassVar[type] = RunCosts

    format: Literal["pipesched-run-costs"]
    version: Literal[1, 2, 3]
    runs: Annotated[tuple[Text, ...], Field(min_length=1, max_length=1000)]
    warmup: Count
    microbatch_size: PositiveCount | None
    stages: Annotated[tuple[RunStage, ...], Field(min_length=1, max_length=100_000)]
    hand_over: dict[Literal["Op", "Recv", "Send", "Take"], Spread]
    message: Spread | None
    variation: Variation | None = None
    yardstick: Yardstick | None = None


def read_run_costs(text: str, file: str) -> RunCosts:
    """Return the costs in `text`.

    Raises:
        ProfileError: The text has no costs; the message names `file`, the place, the actual and the expected value.
    """
    record = parse_record(RunCostsRecord, text, file, _ADVICE)
    require_no_faults(file, _faults(record), _ADVICE)
    costs: RunCosts = record.value()
    return costs


def run_costs_text(costs: RunCosts, file: str) -> str:
    """Return `costs` as JSON for `read_run_costs`.

    Raises:
        ProfileError: The costs have invalid numbers, such as NaN.
    """
    fields = asdict(costs)
    for assumption in ("assumed_input_share", "splits_stages"):
        del fields[assumption]
    text = json.dumps({"format": "pipesched-run-costs", "version": 3, **fields}, indent=1) + "\n"
    read_run_costs(text, file)
    return text


def _faults(record: RunCostsRecord) -> list[str]:
    """Return the contradictions between fields of the costs, each valid alone."""
    faults = [
        f"stages.{index}.work: got no F, expected one in every stage"
        for index, stage in enumerate(record.stages)
        if "F" not in stage.work
    ]
    spreads: list[tuple[str, Spread]] = [
        (f"stages.{index}.work.{kind}", spread)
        for index, stage in enumerate(record.stages)
        for kind, spread in stage.work.items()
    ]
    spreads += [(f"hand_over.{kind}", spread) for kind, spread in record.hand_over.items()]
    spreads += [("message", record.message)] if record.message is not None else []
    faults += [
        f"{place}.mean_s: got {spread.mean_s}, expected a mean between the least and the most"
        for place, spread in spreads
        if not spread.deciles_s[0] <= spread.mean_s <= spread.deciles_s[10]
    ]
    for name, since in (("variation", 2), ("yardstick", 3)):
        is_due = record.version >= since
        if (name in record.model_fields_set) != is_due:
            got, wanted = ("no", "one, or null,") if is_due else ("a", "none")
            faults.append(f"costs: got {got} {name}, expected {wanted} in version {record.version}")
    return faults
