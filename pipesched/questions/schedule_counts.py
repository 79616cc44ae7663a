"""The counts and parameters of a schedule that is given by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipesched.schedules.builders import ParameterValue
from pipesched.schedules.common import Description


@dataclass(frozen=True, kw_only=True)  # without slots, as questions are joined
class ScheduleCounts:
    """The counts and parameters of a schedule that is given by name; lists have their own."""

    panel: ClassVar[str] = "Schedule"

    num_ranks: Annotated[int | None, Description("Ranks of the pipeline.", short="-p", least=1)] = None
    num_microbatches: Annotated[int | None, Description("Micro-batches.", short="-m", least=1)] = None
    num_chunks: Annotated[
        int | None, Description("Stages per rank, for schedules with this parameter.", short="-v", least=1)
    ] = None
    parameters: Annotated[
        Mapping[str, ParameterValue] | None,
        Description("Parameters of the schedule, as {'pipelines': 2}.", has_option=False),
    ] = None
