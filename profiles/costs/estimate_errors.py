"""The errors of estimates beside published runs, for the GPUs of a family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from annotated_types import Ge, Le

from pipesched.profiles import STRICT
from pipesched.schedules.common import Count, Text

_Error: TypeAlias = Annotated[float, Ge(0), Le(1e6)]


@dataclass(frozen=True, slots=True)
class ErrorRange:
    """Absolute errors of predictions, as shares of the published numbers.

    Attributes:
        count: Number of predictions.
        median: Median of the errors.
        ninth: 90th percentile of the errors.
    """

    count: Count
    median: _Error
    ninth: _Error


@dataclass(frozen=True, slots=True)
class EstimateErrors:
    """The errors of estimates beside published runs that no constant was fitted to; None stands for too few runs.

    Attributes:
        gpus: Names of the data sheets of the runs.
        time: Errors of the seconds of an iteration.
        memory: Errors of the peak memory of a GPU.
    """

    __pydantic_config__ = STRICT

    gpus: tuple[Text, ...]
    time: ErrorRange | None
    memory: ErrorRange | None
