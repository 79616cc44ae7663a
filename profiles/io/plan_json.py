"""A plan as JSON: ``{"format": "pipesched-plan", "version": 3, "model": ..., "schedule_spec": {...}, ...}``."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field

from pipesched.profiles import MessagePrecision, ProfileError
from pipesched.profiles.io.cluster_json import ClusterRecord, cluster_fields
from pipesched.profiles.io.model_name import NameFromFile
from pipesched.profiles.io.plan import PLAN_FORMAT, Plan, PlanFormat, Predicted
from pipesched.profiles.io.validation import Record, Sharding, parse_record
from pipesched.schedules import Yardstick
from pipesched.schedules.common import PositiveCount, Text
from pipesched.schedules.transforms import ScheduleSpec

_ADVICE = "correct it, or make the plan again"


class PlanRecord(Record):
    """A plan in a file."""

    becomes: ClassVar[type] = Plan

    format: PlanFormat
    version: Literal[3]
    model: Text
    schedule_spec: ScheduleSpec
    partition: Annotated[tuple[PositiveCount, ...], Field(min_length=1, max_length=100_000)]
    microbatch_size: PositiveCount
    batch_size: PositiveCount
    compression: MessagePrecision | None
    predicted: Predicted
    origin: Text = ""
    sharding: Sharding | None = None
    dtype: Text = ""
    yardstick: Yardstick | None = None
    cluster: ClusterRecord | None = None


class _Setting(BaseModel):
    """A row of the tuner's settings; only the plan of the row is read."""

    plan: PlanRecord | None = None


def _chosen(text: str, file: str) -> PlanRecord:
    """Return the first plan among the settings of `pipesched tune`."""
    advice = "write it with 'plan ... --out plan.json' or 'tune ... --out settings.json'"
    rows = parse_record(list[_Setting], text, file, advice)
    for row in rows:
        if row.plan is not None:
            return row.plan
    raise ProfileError(f"{file}: got {len(rows)} settings without a plan, expected one setting with its plan; {advice}")


def read_plan(text: str, file: str) -> Plan:
    """Return the plan in `text`, or the first plan if `text` is a list of the tuner's settings.

    Raises:
        ProfileError: The text is no plan; the message names `file`, the place, the actual and the expected value.
    """
    if re.match(r'\s*\{\s*"format"\s*:\s*"pipesched\.plan"', text):
        raise ProfileError(
            f"{file}: got an answer with layouts, expected a plan; try a plan for a profile, or `trainer=megatron` for "
            "the flags of a layout"
        )
    is_list = text.lstrip().startswith("[")
    record = _chosen(text, file) if is_list else parse_record(PlanRecord, text, file, _ADVICE)
    if record.cluster is not None:
        record.cluster.require_consistent(f"{file}: cluster", _ADVICE)
    plan: Plan = replace(record.value(), model=NameFromFile(record.model, file))
    return plan


def plan_text(plan: Plan, file: str) -> str:
    """Return `plan` as JSON for `read_plan`.

    Raises:
        ProfileError: The plan has invalid numbers, such as NaN.
    """
    fields = {"format": PLAN_FORMAT, "version": 3, **asdict(replace(plan, cluster=None))}
    fields["cluster"] = None if plan.cluster is None else cluster_fields(plan.cluster)
    text = json.dumps(fields, indent=1) + "\n"
    read_plan(text, file)
    return text
