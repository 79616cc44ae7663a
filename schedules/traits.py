"""The traits of a schedule: what the catalogue knows of it and its op lists do not say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PredictionRule(StrEnum):
    """How a step is predicted: W - lr s delta for s steps ahead; or by taking them.

    MOMENTUM   delta is the smoothed gradient, as SGD with momentum has it (SpecTrain)
    ADAM       delta is Adam's direction, whatever the optimizer is (XPipe)
    OPTIMIZER  delta is the direction of the optimizer that trains the stage (PipeOptim, Table I)
    CODE       as OPTIMIZER, but for SGD with momentum as the authors of PipeOptim wrote it
    ZERO       the optimizer takes s steps, with gradients of zero
    CONSTANT   the optimizer takes s steps, with its last gradients again
    """

    MOMENTUM = "momentum"
    ADAM = "adam"
    OPTIMIZER = "optimizer"
    CODE = "code"
    ZERO = "zero"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTraits:
    """What a schedule is by nature. The defaults are those of lists of which nothing is known.

    Attributes:
        is_asynchronous: Whether it steps without a flush.
        averages: Whether its pipelines have optimizers of their own, and an Average with a reference model.
        takes_chunks: Whether a rank may hold any number of stages (``-v``).
        takes_plans: Whether the planner may choose its depth and width: it is one pipeline.
        prediction: How weights are predicted where an op looks ahead; None where none does, or nobody knows.
    """

    is_asynchronous: bool = False
    averages: bool = False
    takes_chunks: bool = False
    takes_plans: bool = True
    prediction: PredictionRule | None = None
