"""A plan as JSON: ``{"format": "pipesched-plan", "version": 3, "model": ..., "schedule_spec": {...}, ...}``."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from pipesched.profiles import MessagePrecision, ProfileError
from pipesched.profiles.io.cluster_json import ClusterRecord, cluster_fields
from pipesched.profiles.io.model_name import NameFromFile
from pipesched.profiles.io.plan import PLAN_FORMAT, Plan, PlanFormat, Predicted
from pipesched.profiles.io.record_schema import record_schema
from pipesched.profiles.io.validation import Record, Seconds, Sharding, Text, YardstickRecord, parse_record
from pipesched.schedules.transforms import Placement, RecomputeWhen, ScheduleSpec

_ADVICE = "correct it, or make the plan again"

_Least1 = Annotated[int, Field(ge=1, lt=2**31)]
_Ranks = Annotated[int, Field(ge=1, le=65_536)]
_Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Wholes = Annotated[tuple[_Whole, ...], Field(max_length=100_000)]
_Share = Annotated[float, Field(ge=0, le=1)]


class _ScheduleSpecRecord(Record):
    becomes: ClassVar[type] = ScheduleSpec

    name: Annotated[str, Field(max_length=100)] = ""
    num_ranks: _Ranks = 1
    num_microbatches: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    num_chunks: Annotated[int, Field(ge=1, le=10_000)] | None = None
    parameters: dict[Text, _Whole | float | _Wholes | None] = Field(default_factory=dict, max_length=100)
    lists: str | None = None
    recompute: _Wholes | Literal["all"] | None = None
    recompute_when: RecomputeWhen = "early"
    width: _Ranks = 1
    placement: Placement = "pipeline"
    step_barrier: bool = False
    tied_stages: _Wholes = ()


class _Predicted(Record):
    becomes: ClassVar[type] = Predicted

    seconds: Seconds
    throughput: Annotated[float, Field(ge=0)]
    memory_bytes: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(max_length=100_000)] = ()
    bubble_fraction: _Share | None = None
    communication_fraction: _Share | None = None


class _Plan(Record):
    becomes: ClassVar[type] = Plan

    format: PlanFormat
    version: Literal[3]
    model: Text
    schedule_spec: _ScheduleSpecRecord
    partition: Annotated[tuple[_Least1, ...], Field(min_length=1, max_length=100_000)]
    microbatch_size: _Least1
    batch_size: _Least1
    compression: MessagePrecision | None
    predicted: _Predicted
    origin: Text = ""
    sharding: Sharding | None = None
    dtype: Text = ""
    yardstick: YardstickRecord | None = None
    cluster: ClusterRecord | None = None


class _Setting(BaseModel):
    """A row of the tuner's settings; only the plan of the row is read."""

    plan: _Plan | None = None


def _chosen(text: str, file: str) -> _Plan:
    """Return the first plan among the settings of `pipesched tune`."""
    advice = "write it with 'plan ... --out plan.json' or 'tune ... --out settings.json'"
    rows = parse_record(list[_Setting], text, file, advice)
    for row in rows:
        if row.plan is not None:
            return row.plan
    raise ProfileError(f"{file}: got {len(rows)} settings without a plan, expected one with it; {advice}")


def read_plan(text: str, file: str) -> Plan:
    """Return the plan in `text`; in the settings of the tuner, the first plan.

    Raises:
        ProfileError: The text is no plan; the message names `file`, the place, the actual and the expected value.
    """
    is_list = text.lstrip().startswith("[")
    record = _chosen(text, file) if is_list else parse_record(_Plan, text, file, _ADVICE)
    if record.cluster is not None:
        record.cluster.require_consistent(f"{file}: cluster", _ADVICE)
    plan: Plan = replace(record.value(), model=NameFromFile(record.model, file))
    return plan


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema of the files of `read_plan`."""
    return record_schema(_Plan)


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
