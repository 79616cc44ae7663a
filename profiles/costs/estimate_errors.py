"""The errors of estimates beside published runs, for the GPUs of a family."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorRange:
    """Absolute errors of predictions, as shares of the published numbers.

    Attributes:
        count: Number of predictions.
        median: Median of the errors.
        ninth: 90th percentile of the errors.
    """

    count: int
    median: float
    ninth: float


@dataclass(frozen=True, slots=True)
class EstimateErrors:
    """The errors of estimates beside published runs that no constant was fitted to; None stands for too few runs.

    Attributes:
        gpus: Names of the data sheets of the runs.
        time: Errors of the seconds of an iteration.
        memory: Errors of the peak memory of a GPU.
    """

    gpus: tuple[str, ...]
    time: ErrorRange | None
    memory: ErrorRange | None
